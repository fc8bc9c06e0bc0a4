"""One tiny multimodal model at a time, on a real vLLM: in this process, and as a server."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.e2e.remote import remote_gateway
from tests.e2e.vllm_server import own_options, vllm_environment, vllm_server
from tests.multimodal.support import Gateway, Seeing
from tests.support import MODEL, serving

MODELS = Path(__file__).parents[2] / ".cache" / "models"
"""Where `make test-multimodal` puts them; elsewhere with TEST_MULTIMODAL_MODELS."""
ENGINE_FLAGS = (
    *("--dtype", "float32", "--max-model-len", "1024", "--enforce-eager"),
    *("--served-model-name", MODEL),
)
LOOPBACK = {"allowed_media_domains": "127.0.0.1", "media_private_networks": "127.0.0.1/32"}
"""The sidecar may fetch from this machine, where its server could as well."""


@pytest.fixture(scope="module")
def model(request: pytest.FixtureRequest) -> Path:
    """The model that the module names in MODEL."""
    folder = Path(os.environ.get("TEST_MULTIMODAL_MODELS") or MODELS) / request.module.MODEL
    if not (folder / "config.json").is_file():
        pytest.fail(f"no model in {folder}: run `make test-multimodal`")
    return folder


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of local media, of both gateways."""
    return tmp_path_factory.mktemp("media")


@pytest.fixture(scope="module")
def environment() -> Iterator[dict[str, str]]:
    """vLLM's environment, for one model: two engines run side by side."""
    with vllm_environment(gigabytes=1) as environment:
        yield environment


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def seeing(
    request: pytest.FixtureRequest, model: Path, root: Path, environment: dict[str, str]
) -> AsyncIterator[Seeing]:
    """The gateway with the model in this process, with the module's own FLAGS."""
    from proxy.engines.embedded import parse_engine_args
    from tests.multimodal.engine import NotingEngine

    flags = [*ENGINE_FLAGS, *request.module.FLAGS]
    engine = NotingEngine(parse_engine_args(str(model), flags))
    async with serving(engine, media_root=str(root), media_memory_limit=1024) as running:
        yield Seeing(running, root, engine)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def sidecar(
    request: pytest.FixtureRequest,
    model: Path,
    root: Path,
    environment: dict[str, str],
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[Gateway]:
    """A gateway before vLLM's own server, which has the same model and options."""
    flags = (*ENGINE_FLAGS, *request.module.FLAGS, "--interleave-mm-strings", *own_options())
    # The gateway with the engine in this process names its own, which no other process has.
    environment.pop("VLLM_MEDIA_CONNECTOR", None)
    log = tmp_path_factory.mktemp("vllm") / "server.log"
    async with (
        vllm_server(model, *flags, environment=environment, log=log) as url,
        remote_gateway(url, media_root=str(root), media_memory_limit=1024, **LOOPBACK) as opened,
    ):
        yield Gateway(opened.running, root)
