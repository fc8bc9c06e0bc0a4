"""Fills a virtual environment with the gateway and, where wanted, vLLM for the CPU."""

from __future__ import annotations

import platform
import shutil
import subprocess
from pathlib import Path
from typing import Final

from engines import Engine, torch_index, torch_index_arguments
from environment import Contents, Environment
from layout import ROOT, SCRIPTS
from progress import Command, Progress, SetupError

_GB: Final = 1000**3
_ROOM_FOR_TOOLS: Final = 1
_ROOM_FOR_ENGINE: Final = 6
_ROOM_FOR_ENGINE_ON_ANY_TORCH: Final = 12
_MACHINES: Final = ("x86_64", "aarch64")
_TORCH_COMPANIONS: Final = ("torchvision", "torchaudio", "torchcodec")


def prepare(environment: Environment, wanted: Contents, progress: Progress) -> None:
    """Make the environment hold what is wanted, in two steps; at once where it does already."""
    name = environment.folder.name
    if environment.works() and environment.holds(wanted):
        progress.step(f"Python environment {name}: ready")
        progress.step(f"{_title(wanted)}: ready")
        return
    contents = wanted.with_also(environment.installed())
    _check_machine(environment.folder, contents)
    progress.step(f"Python environment {name} (Python {platform.python_version()})")
    if not environment.works():
        environment.create(progress)
    progress.step(f"{_title(contents)}: {_expectation(contents)}")
    with environment.being_filled(contents):
        _install(environment, contents, progress)


def _title(contents: Contents) -> str:
    engine = f" and vLLM {contents.engine.version} for the CPU" if contents.engine else ""
    return f"The gateway{engine}"


def _expectation(contents: Contents) -> str:
    if contents.engine is None:
        return "about a minute"
    return "about 900 MB to download, 3.5 GB on disk; 2 to 10 minutes"


def _check_machine(folder: Path, contents: Contents) -> None:
    """Fail now rather than after ten minutes."""
    if contents.engine is not None and (
        platform.system() != "Linux" or platform.machine() not in _MACHINES
    ):
        raise SetupError(
            f"vLLM for the CPU is built for Linux on {' and '.join(_MACHINES)}; "
            f"this is {platform.system()} on {platform.machine()}."
        )
    check_room(folder.parent, _room(contents))


def _room(contents: Contents) -> int:
    if contents.engine is None:
        return _ROOM_FOR_TOOLS
    large = contents.engine.any_torch or contents.engine.media
    return _ROOM_FOR_ENGINE_ON_ANY_TORCH if large else _ROOM_FOR_ENGINE


def check_room(folder: Path, gigabytes: int) -> None:
    """SetupError when the disk that holds the folder has less room than that."""
    free = shutil.disk_usage(folder).free
    if free < gigabytes * _GB:
        raise SetupError(
            f"{gigabytes} GB of disk are needed in {folder}, {free / _GB:.1f} GB are free."
        )


def _install(environment: Environment, contents: Contents, progress: Progress) -> None:
    extras = f"[{','.join(sorted(contents.extras))}]" if contents.extras else ""
    gateway = ["-e", f"{ROOT}{extras}"]
    engine = contents.engine
    if engine is None:
        _pip_install(environment, gateway, "Installing the gateway and its tools", progress)
        return
    index = None if engine.media else torch_index_arguments(environment.python, engine)
    if index is not None:
        requirements = [*index, *engine.requirements, *gateway]
        _pip_install(environment, requirements, "Installing", progress)
    elif engine.any_torch or engine.media:
        _install_on_torch_from_pypi(environment, engine, gateway, progress)
    else:
        raise SetupError(_no_torch(engine))
    _remove_misfits(environment, progress)
    progress.run([environment.python, "-c", "import vllm"], "Checking that vLLM can be imported")


def _install_on_torch_from_pypi(
    environment: Environment, engine: Engine, gateway: list[str], progress: Progress
) -> None:
    # Three equals signs: with two, pip takes a +cpu build of that version where it sees one.
    torch = f"torch==={engine.torch}"
    reason = "torchvision wants it" if engine.media else f"there is no CPU build of {engine.torch}"
    progress.note(f"Taking PyPI's build of torch, since {reason}: 6 GB in all")
    vllm, *limits = engine.requirements
    _pip_install(environment, [torch, *engine.media, "packaging"], "Installing torch", progress)
    _pip_install(environment, ["--no-deps", vllm], "Installing vLLM", progress)
    command = [environment.python, SCRIPTS / "engine_requirements.py"]
    rest = subprocess.check_output(command, text=True).splitlines()
    requirements = [torch, *limits, *rest, *gateway]
    _pip_install(environment, requirements, "Installing what vLLM requires", progress)


def _remove_misfits(environment: Environment, progress: Progress) -> None:
    """Remove torch's companions where they were built for another torch.

    Those of PyPI are CUDA builds: beside a CPU torch they break `import vllm`, and
    text models do without them.
    """
    command: Command = [environment.python, "-c", "import torchvision"]
    if subprocess.run(command, capture_output=True, check=False).returncode != 0:
        arguments = ["uninstall", "--yes", *_TORCH_COMPANIONS]
        environment.pip(arguments, "Removing what does not fit this torch", progress)


def _pip_install(
    environment: Environment, requirements: list[str], what: str, progress: Progress
) -> None:
    environment.pip(["install", "--progress-bar=off", *requirements], what, progress)


def _no_torch(engine: Engine) -> str:
    return (
        f"pip finds no torch=={engine.torch}+cpu, which vLLM for the CPU needs, and "
        f"{torch_index()} does not answer or does not have it for this Python. "
        "Allow access to that address, or name an index that has it: make TORCH_INDEX=https://... "
    ).strip()
