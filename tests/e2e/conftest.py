"""One vLLM for the whole session, behind a gateway in this very process."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio

from tests.e2e.herd import Herd, started_herd
from tests.e2e.plugin import install_plugin
from tests.e2e.remote import RemoteGateway, remote_gateway
from tests.e2e.support import NAMES, RealGateway
from tests.e2e.vllm_server import own_options, vllm_environment, vllm_server
from tests.support import MODEL, serving

if TYPE_CHECKING:
    from tests.e2e.shared import SharedPair

MODELS = Path(__file__).parents[2] / ".cache" / "models"
"""Where `make models` puts them."""
ENGINE_FLAGS = (
    *("--dtype", "float32", "--max-model-len", "2048", "--max-num-seqs", "16"),
    "--enforce-eager",
    *("--served-model-name", *NAMES),
)


KV_CACHE = 1
"""GiB of each engine. Up to eight of them live side by side, in whatever order the tests come."""


def prepared(variable: str, folder: str) -> Path:
    path = Path(os.environ.get(variable) or MODELS / folder)
    if not (path / "config.json").is_file():
        pytest.fail(f"no model in {path}: run `make models`, or set {variable}")
    return path


@pytest.fixture(scope="session")
def model_path() -> Path:
    """SmolLM2-135M-Instruct."""
    return prepared("TEST_MODEL", "smollm2-135m-instruct")


@pytest.fixture(scope="session")
def tiny_model() -> Path:
    """One layer of random weights: starts in seconds and makes thousands of tokens a second."""
    return prepared("TEST_TINY_MODEL", "tiny-llama")


@pytest.fixture(scope="session")
def engine_environment() -> Iterator[dict[str, str]]:
    """vLLM's environment, for the whole session."""
    with vllm_environment(gigabytes=KV_CACHE) as environment:
        yield environment


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def real(model_path: Path, engine_environment: dict[str, str]) -> AsyncIterator[RealGateway]:
    """The gateway on the real model. Nothing runs in it at the beginning of a test."""
    from proxy.engines.embedded import parse_engine_args
    from tests.e2e.engines import SharedEngine

    engine = SharedEngine(parse_engine_args(str(model_path), list(ENGINE_FLAGS)))
    async with serving(engine) as running:
        assert running.gateway.info.names[0] == MODEL
        yield RealGateway(running, engine)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def remote(
    model_path: Path,
    engine_environment: dict[str, str],
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[RemoteGateway]:
    """A gateway in front of vLLM's own server, which has the same model and options."""
    flags = (*ENGINE_FLAGS, "--scheduling-policy", "priority", *own_options())
    log = tmp_path_factory.mktemp("vllm") / "server.log"
    async with (
        vllm_server(model_path, *flags, environment=engine_environment, log=log) as url,
        remote_gateway(url) as opened,
    ):
        yield opened


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def shared(model_path: Path, engine_environment: dict[str, str]) -> AsyncIterator[SharedPair]:
    """Two clients of one engine, in this very process, for a module that needs them."""
    from tests.e2e.shared import shared_pair

    async with shared_pair(model_path, *ENGINE_FLAGS) as pair:
        yield pair


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def two_workers(shared: SharedPair) -> AsyncIterator[RealGateway]:
    """Two workers, each with one of these clients, behind one port."""
    from tests.e2e.engines import Borrowed

    lent: list[Any] = [Borrowed(each, shared.info) for each in (shared.first, shared.second)]
    async with serving(*lent) as running:
        yield RealGateway(running, shared.first, (shared.second,))


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def herd(
    tiny_model: Path,
    engine_environment: dict[str, str],
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[Herd]:
    """Four gateway processes on the tiny model."""
    plugin = install_plugin(tmp_path_factory.mktemp("site"))
    async with started_herd(tiny_model, engine_environment, plugin) as started:
        yield started
