"""The two processes of deploy/kubernetes/overlays/sidecar, started with the words that stand there.

Only what a pod has and this machine has not is replaced: the model's folder, and ports that
somebody else may have.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from tests.e2e.process import GatewayProcess, serve_process
from tests.e2e.support import E2E
from tests.e2e.vllm_server import NEW_OPTIONS, free_port, own_options, vllm_process
from tests.support import get, post

pytestmark = E2E

OVERLAY: Final = Path(__file__).parents[2] / "deploy/kubernetes/overlays/sidecar/deployment.yaml"
SMALL: Final = ("--dtype=float32", "--enforce-eager", "--num-gpu-blocks-override=128")
"""For this machine: the pod's has an accelerator and room for a real model."""
BODY: Final = {"text_input": "The quick brown fox", "parameters": {"max_new_tokens": 5}}


@pytest.fixture(scope="module")
def pod() -> dict[str, Any]:
    document = yaml.safe_load(OVERLAY.read_text("utf-8"))
    spec: dict[str, Any] = document["spec"]["template"]["spec"]
    return spec


def here(words: list[str], replaced: dict[str, str]) -> list[str]:
    """`words` with what is different here; each difference must be there to replace."""
    text = "\n".join(words)
    for old, new in replaced.items():
        assert old in text, f"the overlay does not say {old}"
        text = text.replace(old, new)
    lacking = {flag for flags in NEW_OPTIONS.values() for flag in flags} - set(own_options())
    return [word for word in text.split("\n") if word not in lacking]


async def answers(process: GatewayProcess) -> None:
    """Live at once, ready with its server, and then it streams."""
    port = await process.port()
    assert (await get(port, "/v2/health/live")).status == 200
    assert (await get(port, "/v2/health/ready")).status == 503
    assert (await post(port, BODY)).status == 503
    assert await process.ready() == port
    assert (await get(port, "/v2/health/ready")).status == 200
    answer = await post(port, BODY)
    assert answer.status == 200
    assert answer.complete
    assert 1 <= len(answer.texts) <= 5


async def test_the_overlays_two_processes_serve_together(
    pod: dict[str, Any],
    tiny_model: Path,
    engine_environment: dict[str, str],
    tmp_path: Path,
) -> None:
    (vllm,), (gateway,) = pod["initContainers"], pod["containers"]
    port, model = str(free_port()), {"/models/llama3-70b": str(tiny_model)}
    interpreter, *module = vllm["command"]
    assert interpreter == "python3"
    server = here(vllm["args"], {**model, "--port=8000": f"--port={port}"})
    front = here(
        gateway["args"],
        {
            **model,
            ":8000": f":{port}",
            "--port=1025": "--port=0",
            "--metrics-port=1027": "--metrics-port=0",
        },
    )
    assert front[0] == "serve"
    log = tmp_path / "vllm.log"
    async with (
        vllm_process(*module, *server, *SMALL, environment=engine_environment, log=log),
        serve_process(*front[1:], environment=engine_environment) as process,
    ):
        await answers(process)
        process.terminate()
        assert await process.exit_code() == 0
