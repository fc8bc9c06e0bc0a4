#!/bin/sh
# Makes the environment of the client tests: clients_env.sh FOLDER
#
# Runs in seconds when it is there already.
set -eu
folder=$1
here=$(dirname "$0")
stamp=$folder/.ready
wanted=$(cat "$here/clients.txt" "$0" | cksum)

if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$wanted" ]; then
    exit 0
fi
rm -rf "$folder"
"${PYTHON:-python3}" -m venv "$folder"
pip="$folder/bin/pip --disable-pip-version-check -q"
echo "installing torch for AISBench (its model classes import it; any build will do)"
$pip install "torch==2.13.0"
echo "installing the clients"
$pip install -r "$here/clients.txt"
$pip install --no-deps ais-bench-benchmark==3.1.20260630
echo "$wanted" >"$stamp"
