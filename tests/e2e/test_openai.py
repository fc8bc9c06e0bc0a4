"""The OpenAI API on the same address and the same engine, with OpenAI's own client."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import openai
import pytest

from tests.e2e.remote import RemoteGateway
from tests.e2e.support import E2E, RealGateway, ask, eventually, text_of
from tests.e2e.test_text import STORY
from tests.support import MODEL, RunningGateway, connection, get, request_bytes

pytestmark = E2E

JSON = "Content-Type: application/json"  # vLLM asks for it
MESSAGES = [{"role": "user", "content": "Say hello."}]


@dataclass(frozen=True)
class Address:
    """A gateway, and how to see that its engine has nothing to do."""

    running: RunningGateway
    idle: Callable[[], bool]

    @property
    def client(self) -> openai.AsyncOpenAI:
        base = f"http://127.0.0.1:{self.running.port}/v1"
        return openai.AsyncOpenAI(base_url=base, api_key="none", max_retries=0)


@pytest.fixture(params=["embedded", "remote"])
def address(request: pytest.FixtureRequest, real: RealGateway, remote: RemoteGateway) -> Address:
    if request.param == "embedded":
        return Address(real.running, lambda: not real.unfinished)
    return Address(remote.running, lambda: not remote.held())


async def test_its_text_is_that_of_the_legacy_route(address: Address) -> None:
    legacy = await ask(address.running, STORY, max_new_tokens=12, do_sample=False)
    async with address.client as client:
        answer = await client.completions.create(
            model=MODEL, prompt=STORY, max_tokens=12, temperature=0
        )
    assert answer.choices[0].text == text_of(legacy)
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 12


async def test_chat_streams(address: Address) -> None:
    async with address.client as client:
        stream = await client.chat.completions.create(
            model=MODEL,
            messages=MESSAGES,  # type: ignore[arg-type]
            max_tokens=8,
            temperature=0,
            stream=True,
        )
        chunks = [chunk async for chunk in stream]
    texts = [chunk.choices[0].delta.content for chunk in chunks if chunk.choices]
    assert len(chunks) > 3, "it comes bit by bit"
    assert "".join(text or "" for text in texts).strip()


async def test_old_and_new_clients_at_once(address: Address) -> None:
    async with address.client as client:
        alone = await ask(address.running, STORY, max_new_tokens=12, do_sample=False)
        legacy, chat, new = await asyncio.gather(
            ask(address.running, STORY, max_new_tokens=12, do_sample=False),
            client.chat.completions.create(
                model=MODEL,
                messages=MESSAGES,  # type: ignore[arg-type]
                max_tokens=12,
            ),
            client.completions.create(model=MODEL, prompt=STORY, max_tokens=12, temperature=0),
        )
    assert legacy.texts == alone.texts
    assert new.choices[0].text == text_of(alone)
    assert chat.choices[0].message.content


async def test_its_errors_are_its_own(address: Address) -> None:
    async with address.client as client:
        with pytest.raises(openai.NotFoundError):
            await client.completions.create(model="unknown", prompt="x")
        with pytest.raises(openai.BadRequestError):
            await client.completions.create(model=MODEL, prompt="x", temperature=-1)


async def test_the_models_are_those_of_the_engine(address: Address) -> None:
    async with address.client as client:
        models = [model.id async for model in client.models.list()]
    assert models == list(address.running.gateway.info.names)


async def test_a_client_that_leaves_frees_the_engine(address: Address) -> None:
    body = {"model": MODEL, "prompt": STORY, "max_tokens": 500, "stream": True}
    async with connection(address.running.port) as client:
        client.send(request_bytes(body, "/v1/completions", headers=(JSON,)))
        async with asyncio.timeout(60):
            assert (await client.head()).status == 200
            await client.chunk()
        await client.close()
        await eventually(address.idle, within=2.0, what="the engine still works on it")


async def test_only_v1_is_reached(address: Address) -> None:
    for path in ("/tokenize", "/version", "/load", "/v1/../version", "/docs", "/openapi"):
        assert (await get(address.running.port, path)).status == 404


async def test_there_is_one_engine(real: RealGateway) -> None:
    assert real.engine._openai is not None
    application = real.engine._openai._application
    assert application.state.engine_client is real.engine.llm  # type: ignore[attr-defined]
