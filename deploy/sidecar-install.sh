#!/bin/sh
# Installs the gateway, without an engine, into a new virtual environment; run it from the
# repository's root. Dockerfile.sidecar and its test do exactly this.
#   sidecar-install.sh DIRECTORY
set -eu

directory=$1
python3 -m venv "$directory"
"$directory/bin/pip" install --no-cache-dir --no-compile .
"$directory/bin/pip" uninstall --yes setuptools pip
# Debug symbols and sources of compiled modules: half of it.
find "$directory/lib" -name '*.so' -exec strip --strip-unneeded {} +
find "$directory/lib" \( -name '*.pyx' -o -name '*.pxd' -o -name '*.c' -o -name '*.h' \) -delete
# The root filesystem will be read-only.
"$directory/bin/python" -m compileall -q --invalidation-mode unchecked-hash "$directory/lib"
