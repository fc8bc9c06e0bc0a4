"""What Dockerfile.sidecar installs, installed here by the same script: small, quick, no engine."""

from __future__ import annotations

import asyncio
import os
import re
import resource
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest

from tests.deploy.rendering import DEPLOY, ROOT
from tests.fake_vllm import fake_vllm
from tests.support import MODEL, generate_body, get, post

RECIPE: Final = DEPLOY / "Dockerfile.sidecar"
LIMIT: Final = 150
"""MB of the whole image."""
BASE: Final = 75 + 35
"""MB of debian:bookworm-slim, and of the packages for Python and certificates in it."""
IMPORTED_WITHIN: Final = 1.5


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The environment that the image gets, made from what Docker would be given."""
    if shutil.which("strip") is None:
        pytest.skip("binutils are not installed")
    context = tmp_path_factory.mktemp("context")
    for line in (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines():
        if line.startswith("!"):
            source, target = ROOT / line[1:], context / line[1:]
            target.parent.mkdir(parents=True, exist_ok=True)
            copy: Any = shutil.copytree if source.is_dir() else shutil.copy2
            copy(source, target)
    where = tmp_path_factory.mktemp("image") / "gateway"
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    subprocess.run(
        [context / "deploy" / "sidecar-install.sh", where],
        check=True,
        cwd=context,
        capture_output=True,
        env={**os.environ, "PATH": path},
    )
    return where


def python(installed: Path, code: str) -> str:
    """What the image's Python prints; isolated, so that nothing of this machine is found."""
    command = [installed / "bin" / "python", "-I", "-c", code]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def megabytes(folder: Path) -> float:
    return sum(each.lstat().st_size for each in folder.rglob("*") if each.is_file()) / 1e6


def test_the_recipe_runs_that_script() -> None:
    text = RECIPE.read_text(encoding="utf-8")
    assert "RUN deploy/sidecar-install.sh /opt/gateway\n" in text
    assert "COPY --from=build /opt/gateway /opt/gateway\n" in text
    bases = re.findall(r"^FROM (\S+)", text, re.MULTILINE)
    assert bases == ["debian:bookworm-slim"] * 2, "Python must be the same in both"


@pytest.mark.timeout(300)
def test_the_image_is_small(installed: Path) -> None:
    assert BASE + megabytes(installed) <= LIMIT


@pytest.mark.timeout(300)
def test_there_is_no_engine_in_it(installed: Path) -> None:
    code = (
        "from importlib.util import find_spec; "
        "print([m for m in ('torch', 'vllm', 'transformers', 'numpy', 'pip') if find_spec(m)])"
    )
    assert python(installed, code) == "[]"


@pytest.mark.timeout(300)
def test_it_is_imported_quickly(installed: Path) -> None:
    """Measured in the processor's time: others use this machine, too."""
    code = "import proxy.lifecycle, proxy.engines.remote.from_settings, uvloop"
    before = _children()
    python(installed, code)
    assert _children() - before <= IMPORTED_WITHIN


def _children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def stamps(folder: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*")}


@pytest.mark.timeout(300)
async def test_it_serves_and_writes_nothing(installed: Path, tmp_path: Path) -> None:
    before = stamps(installed)
    async with fake_vllm(names=(MODEL,)) as server:
        process = await asyncio.create_subprocess_exec(
            *(installed / "bin" / "mindie-gateway", "serve", "--port=0"),
            f"--upstream={server.url}",
            cwd="/",
            env={"PATH": os.environ["PATH"], "HOME": "/nowhere", "PYTHONDONTWRITEBYTECODE": "1"},
            stderr=asyncio.subprocess.PIPE,
        )
        assert process.stderr is not None
        try:
            async with asyncio.timeout(30):
                text = (await process.stderr.readuntil(b"state: ready")).decode()
            port = int(re.findall(r"listening on \S+:(\d+)", text)[0])
            assert (await post(port, generate_body())).complete
            assert (await get(port, "/v1/models")).status == 200
            process.terminate()
            _, code = await asyncio.wait_for(
                asyncio.gather(process.stderr.read(), process.wait()), 20
            )
            assert code == 0
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
    assert stamps(installed) == before
