"""Every vLLM option of the command line reaches vLLM's own arguments unchanged."""

from __future__ import annotations

from typing import Any

import pytest

from proxy.cli import main
from proxy.settings import Settings, SettingsError

pytestmark = pytest.mark.e2e

FLAGS: dict[str, tuple[list[str], dict[str, Any]]] = {
    "tensor parallel": (["--tensor-parallel-size", "8"], {"tensor_parallel_size": 8}),
    "short form": (["-tp", "2", "-dp", "4"], {"tensor_parallel_size": 2, "data_parallel_size": 4}),
    "data parallel": (["--data-parallel-size=2"], {"data_parallel_size": 2}),
    "ray": (
        ["--distributed-executor-backend", "ray"],
        {"distributed_executor_backend": "ray"},
    ),
    "names": (["--served-model-name", "a", "b"], {"served_model_name": ["a", "b"]}),
    "fcfs": (["--scheduling-policy", "fcfs"], {"scheduling_policy": "fcfs"}),
    "our default": ([], {"scheduling_policy": "priority", "served_model_name": None}),
    "context": (["--max-model-len", "4k"], {"max_model_len": 4000}),
    "underscores": (["--max_model_len", "512"], {"max_model_len": 512}),
    "dtype": (["--dtype", "bfloat16"], {"dtype": "bfloat16"}),
    "a switch": (["--enforce-eager"], {"enforce_eager": True}),
    "a switch off": (["--no-enable-prefix-caching"], {"enable_prefix_caching": False}),
    "json": (
        ["--additional-config", '{"torchair_graph_config": {"enabled": true}}'],
        {"additional_config": {"torchair_graph_config": {"enabled": True}}},
    ),
}


def parsed(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> tuple[Settings, Any]:
    """What `serve` would start with: our settings and vLLM's arguments."""
    from proxy.engines.embedded import parse_engine_args

    started: list[tuple[Settings, Any]] = []

    def run(settings: Settings, model: str | None, flags: list[str]) -> int:
        started.append((settings, parse_engine_args(model, flags)))
        return 0

    monkeypatch.setattr("proxy.lifecycle.run", run)
    assert main(["serve", *arguments]) == 0
    return started[0]


@pytest.mark.parametrize("case", FLAGS)
def test_it_reaches_vllm(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    flags, expected = FLAGS[case]
    settings, args = parsed(monkeypatch, "/models/m", "--port", "7", *flags, "--drain-timeout=3")
    assert (settings.port, settings.drain_timeout) == (7, 3)
    assert args.model == "/models/m"
    assert {name: getattr(args, name) for name in expected} == expected


def test_the_command_line_wins_over_the_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    file = tmp_path / "gateway.toml"
    file.write_text('[vllm]\nmax-model-len = 100\ndtype = "float32"\n')
    _, args = parsed(monkeypatch, "m", "--config-file", str(file), "--max-model-len", "200")
    assert (args.max_model_len, args.dtype) == (200, "float32")


@pytest.mark.parametrize("flags", [["--no-such-option"], ["--max-model-len", "many"]])
def test_what_vllm_does_not_know_is_refused(flags: list[str]) -> None:
    from proxy.engines.embedded import parse_engine_args

    with pytest.raises(SettingsError, match="vLLM"):
        parse_engine_args("m", flags)


def test_the_names_served(monkeypatch: pytest.MonkeyPatch) -> None:
    from proxy.engines.embedded import served_names

    _, args = parsed(monkeypatch, "/models/llama3-70b/")
    assert served_names(args) == ("llama3-70b",)
    _, args = parsed(monkeypatch, "/models/x", "--served-model-name", "a", "b")
    assert served_names(args) == ("a", "b")
