"""One tiny multimodal model at a time, on a real vLLM, behind a gateway in this process."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.multimodal.support import Seeing
from tests.support import MODEL, serving

MODELS = Path(__file__).parents[2] / ".cache" / "models"
"""Where `make test-multimodal` puts them; elsewhere with TEST_MULTIMODAL_MODELS."""
ENGINE_FLAGS = (
    *("--dtype", "float32", "--max-model-len", "1024", "--enforce-eager"),
    *("--served-model-name", MODEL),
)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def seeing(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Seeing]:
    """The gateway before the model that the module names in MODEL, with its own FLAGS."""
    from proxy.engines.embedded import EmbeddedEngine, parse_engine_args

    folder = Path(os.environ.get("TEST_MULTIMODAL_MODELS") or MODELS) / request.module.MODEL
    if not (folder / "config.json").is_file():
        pytest.fail(f"no model in {folder}: run `make test-multimodal`")
    flags = [*ENGINE_FLAGS, *request.module.FLAGS]
    engine = EmbeddedEngine(parse_engine_args(str(folder), flags))
    root = tmp_path_factory.mktemp("media")
    async with serving(engine, media_root=str(root), media_memory_limit=1024) as running:
        yield Seeing(running, engine, root)
