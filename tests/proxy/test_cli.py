"""The command line: ours, vLLM's, and the border between them."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest

import proxy.lifecycle
from proxy import __version__
from proxy.cli import main
from proxy.settings import ENV_PREFIX, Settings
from tests.proxy.without_vllm import without_vllm


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    for name in list(os.environ):
        if name.startswith(ENV_PREFIX):
            monkeypatch.delenv(name)


def shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    """What `mindie-gateway settings ARGUMENTS` prints."""
    assert main(["settings", *arguments]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Settings, str | None, list[str]]]:
    """What `serve` hands over to the process."""
    calls: list[tuple[Settings, str | None, list[str]]] = []

    def run(settings: Settings, model: str | None, flags: list[str]) -> int:
        calls.append((settings, model, flags))
        return 42

    monkeypatch.setattr(proxy.lifecycle, "run", run)
    return calls


@pytest.mark.parametrize(
    ("arguments", "model", "flags"),
    [
        (["m"], "m", []),
        (["/path/to m", "--dtype", "float32"], "/path/to m", ["--dtype", "float32"]),
        (["--port", "7", "m", "--seed", "-1", "-tp", "2"], "m", ["--seed", "-1", "-tp", "2"]),
        (["m", "--port=7", "--max_model_len=9"], "m", ["--max_model_len=9"]),
        (
            ["m", "--served-model-name", "a", "b", "--full-text", "--hf-overrides", '{"a": "b c"}'],
            "m",
            ["--served-model-name", "a", "b", "--hf-overrides", '{"a": "b c"}'],
        ),
        (["--model", "m"], None, ["--model", "m"]),
        (["m", "--prot", "1"], "m", ["--prot", "1"]),
    ],
)
def test_what_is_not_ours_is_vllms_unchanged(
    arguments: list[str],
    model: str | None,
    flags: list[str],
    served: list[tuple[Settings, str | None, list[str]]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["serve", *arguments]) == 42
    ((_, given_model, given_flags),) = served
    assert given_model == model
    assert given_flags == flags
    described = shown(capsys, *arguments)
    assert described["model"] == model
    assert described["vllm"] == flags


def test_flags_of_the_command_line_come_after_those_of_the_file(
    tmp_path: Path, served: list[tuple[Settings, str | None, list[str]]]
) -> None:
    """The later flag wins in vLLM's parser."""
    file = tmp_path / "f.toml"
    file.write_text("port = 7\n[vllm]\ndtype = 'float16'\n")
    assert main(["serve", "m", "--config-file", str(file), "--dtype", "float32"]) == 42
    ((settings, _, flags),) = served
    assert settings.port == 7
    assert flags == ["--dtype", "float16", "--dtype", "float32"]


def test_the_config_file_may_be_named_by_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "f.toml"
    file.write_text("port = 7\n")
    monkeypatch.setenv("MINDIE_GATEWAY_CONFIG_FILE", str(file))
    assert shown(capsys, "m")["gateway"]["port"] == 7


NEEDS = {"stop_service": ("--management-port=1026",)}
"""What an option has no meaning without."""


def test_every_setting_is_an_option(capsys: pytest.CaptureFixture[str]) -> None:
    """Booleans are switches with a `--no-` twin, everything else takes a value."""
    gateway = shown(capsys)["gateway"]
    assert list(gateway) == list(Settings.model_fields)
    for name, field in Settings.model_fields.items():
        option = "--" + name.replace("_", "-")
        if field.annotation is bool:
            assert shown(capsys, option, *NEEDS.get(name, ()))["gateway"][name] is True
            assert shown(capsys, option.replace("--", "--no-", 1))["gateway"][name] is False
        else:
            assert main(["settings", f"{option}=\x00no value"]) in (0, 2)
            capsys.readouterr()


def test_a_wrong_value_is_told_and_ends_it(
    capsys: pytest.CaptureFixture[str], served: list[Any]
) -> None:
    assert main(["serve", "m", "--port", "no"]) == 2
    assert capsys.readouterr().err.startswith("mindie-gateway: port: ")
    assert not served


def test_options_are_not_abbreviated(served: list[tuple[Settings, str | None, list[str]]]) -> None:
    """`--max-req` could be meant for vLLM: only whole names are ours."""
    assert main(["serve", "m", "--max-req", "9"]) == 42
    assert served[0][2] == ["--max-req", "9"]


def test_help_separates_ours_from_vllms(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["serve", "--help"])
    assert end.value.code == 0
    text = capsys.readouterr().out
    _, _, ours = text.partition("gateway options:")
    ours, _, vllms = ours.partition("vLLM options:")
    for name in Settings.model_fields:
        assert f"--{name.replace('_', '-')}" in ours
    assert "--tensor-parallel-size" in vllms
    assert "--tensor-parallel-size" not in ours


def test_without_arguments_there_is_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    assert "mindie-gateway serve MODEL" in capsys.readouterr().out


def test_options_without_a_command_are_an_error() -> None:
    assert main(["--port", "7"]) == 2


def test_an_unknown_command_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["sevre", "m"])
    assert end.value.code == 2
    assert "sevre" in capsys.readouterr().err


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--version"])
    assert capsys.readouterr().out == f"mindie-gateway {__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "asked"), [(["--vllm-help"], "all"), (["--vllm-help=ModelConfig"], "ModelConfig")]
)
def test_vllm_help_is_vllms_own(
    arguments: list[str],
    asked: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """vLLM's parser takes the word after `--help=`. Its module is replaced: it loads for long."""

    class Parser(argparse.ArgumentParser):
        def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
            assert args == [f"--help={asked}"]
            print("--tensor-parallel-size")
            sys.exit(0)

    fake: Any = types.ModuleType("proxy.engines.embedded")
    fake.engine_parser = Parser
    monkeypatch.setitem(sys.modules, "proxy.engines.embedded", fake)
    assert main(["serve", *arguments]) == 0
    assert capsys.readouterr().out == "--tensor-parallel-size\n"


def test_vllm_help_without_vllm(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    without_vllm(monkeypatch)
    assert main(["serve", "--vllm-help"]) == 2
    assert "extras" in capsys.readouterr().err


def test_help_and_settings_load_neither_server_nor_engine() -> None:
    """They answer at once, also where no engine is installed."""
    code = (
        "import sys, proxy.cli; proxy.cli.main(['settings', 'm']); "
        "print([m for m in ('aiohttp', 'vllm', 'torch', 'uvloop') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
