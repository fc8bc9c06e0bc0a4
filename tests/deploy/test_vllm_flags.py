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
    if shown["gateway"]["upstream"]:
        pytest.skip("its vLLM is another container")
    parsed = engine_parser().parse_args(["--model", shown["model"], *shown["vllm"]])
    assert parsed.model == shown["model"]
    assert parsed.served_model_name == [shown["model"].rsplit("/", 1)[1]]


def test_vllms_own_server_takes_the_sidecars_options() -> None:
    """As `python -m vllm.entrypoints.openai.api_server` parses them."""
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    pod = rendered("kustomize/sidecar").pod
    (vllm,) = pod["initContainers"]
    arguments = make_arg_parser(FlexibleArgumentParser()).parse_args(vllm["args"])
    (gateway,) = pod["containers"]
    assert f"--upstream=http://{arguments.host}:{arguments.port}" in gateway["args"]
    assert f"--upstream-generation-config={arguments.model}" in gateway["args"]
    assert arguments.served_model_name == [arguments.model.rsplit("/", 1)[1]]
    assert arguments.scheduling_policy == "priority"
    assert vllm["restartPolicy"] == "Always", "a native sidecar: it ends after the gateway"
