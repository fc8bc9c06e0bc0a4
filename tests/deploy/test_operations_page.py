"""The commands of the operations page are taken by our command line and by vLLM's parser."""

from __future__ import annotations

import json
import re
import shlex
from typing import Any, Final

import pytest

from proxy import lifecycle
from proxy.cli import main
from proxy.engines.embedded import engine_parser
from proxy.settings import Settings
from tests.deploy.rendering import ROOT

PAGE: Final = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
COMMANDS: Final = re.findall(r"^mindie-gateway serve (.*)$", PAGE, re.MULTILINE)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_for_scaling_reaches_vllm(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = shlex.split(command)
    assert main(["settings", *arguments]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["model"] == arguments[0]
    assert shown["vllm"] == arguments[1:]
    parsed = engine_parser().parse_args(["--model", shown["model"], *shown["vllm"]])
    given = dict(zip(arguments[1::2], arguments[2::2], strict=True))
    for option, value in given.items():
        reached: Any = getattr(parsed, option.removeprefix("--").replace("-", "_"))
        assert str(reached) == value, option


def test_the_page_shows_each_kind_of_parallelism() -> None:
    text = " ".join(COMMANDS)
    for option in ("tensor-parallel-size", "pipeline-parallel-size", "data-parallel-size"):
        assert f"--{option} " in text
    assert "--distributed-executor-backend ray" in text


@pytest.mark.parametrize(
    ("setting", "shown"),
    [
        ("head_timeout", "15 s"),
        ("body_timeout", "60 s"),
        ("keepalive_timeout", "75 s"),
        ("write_timeout", "60 s"),
        ("max_connections", "4096"),
    ],
)
def test_the_pages_defaults_are_the_settings(setting: str, shown: str) -> None:
    default = Settings.model_fields[setting].default
    assert f"{default:g}" == shown.removesuffix(" s")
    assert f"| `{setting}` | {shown} |" in PAGE


def test_the_pages_sum_for_the_end_is_the_codes() -> None:
    assert f"`drain_timeout` + {lifecycle.CLOSING:g} s" in PAGE
    assert f"`progress_timeout` ({Settings.model_fields['progress_timeout'].default:g} s" in PAGE
