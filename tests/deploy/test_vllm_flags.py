"""Every vLLM option in the manifests is one that vLLM's own parser takes."""

from __future__ import annotations

import pytest

from proxy.engines.embedded import engine_parser
from tests.deploy.rendering import ALL, rendered


@pytest.mark.parametrize("name", ALL)
def test_vllm_takes_its_options(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from tests.deploy.test_manifests import effective

    shown = effective(rendered(name), monkeypatch, capsys)
    parsed = engine_parser().parse_args(["--model", shown["model"], *shown["vllm"]])
    assert parsed.model == shown["model"]
    assert parsed.served_model_name == [shown["model"].rsplit("/", 1)[1]]
