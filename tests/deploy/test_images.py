"""The images' recipes, as far as they can be judged without building them."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.deploy.rendering import DEPLOY, ROOT, tool

RECIPES = sorted(DEPLOY.glob("Dockerfile.*"))


@pytest.fixture(params=RECIPES, ids=lambda path: path.suffix[1:])
def recipe(request: pytest.FixtureRequest) -> Path:
    path: Path = request.param
    return path


def test_there_is_one_for_each_way_to_run() -> None:
    assert {path.suffix for path in RECIPES} >= {".ascend", ".cpu", ".sidecar"}


def test_hadolint_is_content(recipe: Path) -> None:
    result = subprocess.run(
        [tool("hadolint"), str(recipe)], check=False, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stdout


def test_the_last_user_is_not_root(recipe: Path) -> None:
    users = re.findall(r"^USER (\d+):(\d+)$", recipe.read_text(encoding="utf-8"), re.MULTILINE)
    assert users
    assert int(users[-1][0]) > 0


def test_what_is_copied_exists_and_is_not_ignored(recipe: Path) -> None:
    kept = {
        line[1:]
        for line in (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
        if line.startswith("!")
    }
    assert all((ROOT / name).exists() for name in kept)
    copied = re.compile(r"^COPY (?:--\S+ )*(\S+) \S+$", re.MULTILINE)
    for source in copied.findall(recipe.read_text("utf-8")):
        assert source == "." or source.startswith("/") or source in kept, source


@pytest.mark.parametrize("script", sorted(DEPLOY.glob("*.sh")), ids=lambda path: path.name)
def test_scripts_parse(script: Path) -> None:
    subprocess.run(["bash", "-n", str(script)], check=True)
    assert script.stat().st_mode & 0o111
