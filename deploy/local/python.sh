#!/bin/sh
# Runs the arguments with the first suitable Python: $PYTHON if set, else what is on PATH.
for candidate in ${PYTHON:-python3 python3.12 python3.13 python3.11 python3.14}; do
    if "$candidate" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 15))' 2>/dev/null; then
        exec "$candidate" "$@"
    fi
done
echo "error: Python 3.11 to 3.14 is needed; found: $("${PYTHON:-python3}" --version 2>&1 | head -n 1)." >&2
echo "Install one, or name it: make PYTHON=/path/to/python3.12 ..." >&2
exit 1
