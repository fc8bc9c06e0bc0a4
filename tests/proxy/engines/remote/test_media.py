"""Media before a remote vLLM: as data URLs in a chat, read while they are sent."""

from __future__ import annotations

import base64
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest

from proxy.engines.remote.from_settings import remote_engine
from proxy.engines.remote.message import ChatMessage, LargeBody
from proxy.engines.remote.samples import sample
from proxy.media.content import Content, Medium, Spool
from proxy.settings import Settings, SettingsError
from tests.fake_vllm import NEW, OLD, Call, FakeVllm, fake_vllm
from tests.media_support import (
    HOST,
    SAMPLES,
    FakeDns,
    data_url,
    image,
    jpeg,
    media_host,
    open_files,
    png,
    serves,
    text,
    watching,
)
from tests.proxy.engines.remote.sidecar import Sidecar, sidecar
from tests.support import MODEL, RawResponse, generate_body, post
from translators.media import TextPart
from translators.media_bombs import DecodedLimits
from translators.media_formats import FORMATS, MediaKind

ALL = frozenset({"image", "video", "audio"})


@asynccontextmanager
async def seeing(
    tmp_path: Path,
    *,
    media: frozenset[str] = ALL,
    settings: dict[str, Any] | None = None,
    **more: Any,
) -> AsyncIterator[Sidecar]:
    """A gateway before one server with a multimodal model."""
    async with (
        fake_vllm(names=(MODEL,), media=media, **more) as server,
        sidecar(server, media_root=str(tmp_path), **(settings or {})) as opened,
    ):
        yield opened


async def ask(opened: Sidecar, *parts: Any, tokens: int = 3, **parameters: Any) -> RawResponse:
    return await post(opened.port, generate_body(list(parts), tokens, **parameters))  # type: ignore[arg-type]


def sent(server: FakeVllm) -> list[Any]:
    """The content of the last chat, with the media decoded."""
    (message,) = server.calls[-1].document["messages"]
    assert message["role"] == "user"
    found: list[Any] = []
    for part in message["content"]:
        if part["type"] == "text":
            found.append(part["text"])
        else:
            head, _, data = part[part["type"]]["url"].partition(";base64,")
            found.append((head, base64.b64decode(data)))
    return found


@pytest.mark.parametrize("version", [OLD, NEW])
async def test_media_go_as_data_urls_in_order(tmp_path: Path, version: str) -> None:
    (tmp_path / "x.mp4").write_bytes(SAMPLES["mp4"])
    async with seeing(tmp_path, version=version) as opened:
        response = await ask(
            opened,
            image(data_url(jpeg(), "image/png")),
            text("one two"),
            {"type": "video_url", "video_url": str(tmp_path / "x.mp4")},
            {"type": "audio_url", "audio_url": data_url(SAMPLES["wav"], "audio/wav")},
            tokens=4,
            temperature=0.5,
            seed=7,
        )
        assert response.status == 200
        assert response.complete
        assert sent(opened.server) == [
            ("data:image/jpeg", jpeg()),
            "one two",
            ("data:video/mp4", SAMPLES["mp4"]),
            ("data:audio/x-wav", SAMPLES["wav"]),
        ]
        document = opened.server.calls[-1].document
        assert "prompt" not in document
        assert (document["max_tokens"], document["temperature"], document["seed"]) == (4, 0.5, 7)
        # The server answers with its prompt: a token for each medium, one for each word.
        assert response.texts == ["<image>", "one", " two", "<video>"]
        await opened.settled(succeeded=1)


async def test_a_text_model_is_found_out_and_takes_no_media() -> None:
    async with sidecar() as opened:
        assert opened.running.gateway.info.media == {}
        assert (await ask(opened, text("one"), text(" two"))).texts == ["one", " two", "one"]
        assert opened.server.calls[-1].document["prompt"]
        response = await ask(opened, text("a"), image(data_url(png())))
        assert response.status == 422
        assert response.json["error"].startswith('"text_input[1]" holds image')


async def test_what_a_model_takes_is_found_out(tmp_path: Path) -> None:
    async with seeing(tmp_path, media=frozenset({"image", "audio"})) as opened:
        assert set(opened.running.gateway.info.media) == {MediaKind.IMAGE, MediaKind.AUDIO}
        part = {"type": "video_url", "video_url": data_url(SAMPLES["mp4"], "video/mp4")}
        assert (await ask(opened, part)).status == 422


async def test_a_server_that_takes_less_than_the_first_gets_no_work(tmp_path: Path) -> None:
    async with (
        fake_vllm(names=(MODEL,), media=ALL) as rich,
        sidecar(rich) as opened,
        fake_vllm(names=(MODEL,)) as poor,
    ):
        opened.engine._add(poor.url)
        objection = opened.engine._objection
        profile = replace(opened.engine._model, media=frozenset())
        assert objection(profile) == "it does not take the same media"


async def test_the_server_never_gets_a_clients_url(tmp_path: Path) -> None:
    settings = {"allowed_media_domains": HOST, "media_private_networks": "127.0.0.1/32"}
    async with media_host(serves(png())) as host, seeing(tmp_path, settings=settings) as opened:
        opened.running.gateway.media._downloader._look_ups._resolve = FakeDns(
            {HOST: [["127.0.0.1"]]}
        )
        assert (await ask(opened, image(host.url("/secret/path.png")))).status == 200
        assert sent(opened.server) == [("data:image/png", png())]
        assert "secret" not in str(opened.server.calls[-1].document)
        for url in ("http://127.0.0.1:1/a.png", "file:///etc/passwd", "ftp://media.test/a"):
            with watching() as watch:
                assert (await ask(opened, image(url))).status == 422
            assert not any(peer[1] == 1 for peer in watch.connected)
        assert len(opened.server.calls) == 1


async def test_the_prompt_is_counted_before_the_parameters(tmp_path: Path) -> None:
    async with seeing(tmp_path, settings={"max_input_token_len": 2}) as opened:
        assert (await ask(opened, text("a"), image(data_url(png())))).status == 200
        response = await ask(opened, text("a b"), image(data_url(png())), top_p=5)
        assert response.status == 424
        assert (await ask(opened, text("a"), image(data_url(png())), top_p=5)).status == 422
        assert len(opened.server.calls) == 1


@pytest.mark.parametrize("status", [400, 500])
async def test_a_medium_that_the_server_refuses_is_named(tmp_path: Path, status: int) -> None:
    """Or fails on: vLLM 0.32 answers a film of one frame with 500."""
    async with seeing(tmp_path) as opened:
        opened.server.refusal_status = status
        opened.server.refused_media = frozenset({png(7, 7)})
        counted = opened.server.asked.count("/tokenize")
        before = open_files()
        response = await ask(
            opened, text("a"), image(data_url(png())), text("b"), image(data_url(png(7, 7)))
        )
        assert response.status == 422
        assert response.json["error"].startswith(
            '"text_input[3]" is refused by the server\'s model: it cannot be decoded'
        )
        await opened.settled(refused=1)
        # Counted together, each by itself, and one that has to be good.
        assert opened.server.asked.count("/tokenize") - counted == 4
        assert open_files() == before


async def test_a_text_that_stands_for_a_medium_is_named(tmp_path: Path) -> None:
    async with seeing(tmp_path) as opened:
        opened.server.placeholder = "<image>"
        counted = opened.server.asked.count("/tokenize")
        response = await ask(
            opened, text("a"), image(data_url(png())), text("what is <image> here")
        )
        assert response.status == 422
        assert response.json["error"] == (
            '"text_input[2]" holds "<image>", which marks a medium for this model'
        )
        assert opened.server.asked.count("/tokenize") - counted == 1


async def test_what_no_part_is_to_blame_for_is_424(tmp_path: Path) -> None:
    """More media than fit, say: how many do only the server knows."""

    async def refuse(call: Call) -> None:
        many = call.document["body"].count(b"image_url") > 2
        body = b"{}" if many else b'{"tokens": [7]}'
        status = b"400 Bad Request" if many else b"200 OK"
        head = b"HTTP/1.1 %b\r\ncontent-length: %d\r\n\r\n" % (status, len(body))
        await call.send(head + body)

    async with seeing(tmp_path) as opened:
        opened.server.others["/tokenize"] = refuse
        assert (await ask(opened, *[image(data_url(png()))] * 2)).status == 424
        await opened.settled(refused=1)


@pytest.mark.parametrize(
    ("status", "answer"), [(400, 424), (401, 424), (404, 424), (413, 424), (500, 500), (503, 503)]
)
async def test_no_medium_is_blamed_for_the_servers_own_fault(
    tmp_path: Path, status: int, answer: int
) -> None:
    """It took images when it came up."""
    async with seeing(tmp_path) as opened:
        opened.server.media = frozenset()
        opened.server.refusal_status = status
        assert (await ask(opened, image(data_url(png())))).status == answer


async def test_large_media_are_never_whole_in_memory(tmp_path: Path) -> None:
    data = png(filler=5_000_000)
    (tmp_path / "x.png").write_bytes(data)
    async with seeing(tmp_path, settings={"media_memory_limit": 1000}) as opened:
        before = open_files()
        response = await ask(opened, text("a"), image(str(tmp_path / "x.png")))
        assert response.status == 200
        assert sent(opened.server) == ["a", ("data:image/png", data)]
        assert open_files() == before


async def test_another_server_gets_the_media_too(tmp_path: Path) -> None:
    """A try that failed leaves the media as they were."""

    async def cut(call: Call) -> None:
        call.reset()

    async with (
        fake_vllm(names=(MODEL,), media=ALL) as one,
        fake_vllm(names=(MODEL,), media=ALL) as two,
        sidecar(one, two) as opened,
    ):
        one.answer = two.answer = cut
        # Both break: the request fails, after each was tried.
        assert (await ask(opened, text("a"), image(data_url(png())))).status == 500
        two.answer = None
        responses = [await ask(opened, text("a"), image(data_url(png()))) for _ in range(2)]
        assert [response.status for response in responses] == [200, 200]
        assert sent(two) == ["a", ("data:image/png", png())]


async def test_reasoning_is_text(tmp_path: Path) -> None:
    async def think(call: Call) -> None:
        await call.send(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
            b"transfer-encoding: chunked\r\n\r\n"
        )
        await call.event(call.first_words())
        for delta, ids, reason in (
            ({"reasoning": "hm"}, [5], None),
            ({"content": " yes"}, [6], None),
            ({}, [0], "stop"),
        ):
            chunk = call.tokens(ids, "", reason=reason)
            chunk["choices"][0]["delta"] = delta
            await call.event(chunk)
        await call.end()

    async with seeing(tmp_path, answer=think) as opened:
        response = await ask(opened, image(data_url(png())), details=True)
        assert response.texts == ["hm", " yes", ""]
        assert response.frames[-1]["details"]["finish_reason"] == "eos_token"


async def test_a_prompt_that_is_never_sent_frees_its_media(tmp_path: Path) -> None:
    async with seeing(tmp_path, settings={"media_memory_limit": 0}) as opened:
        before = open_files()
        assert (await ask(opened, image(data_url(png())), top_p=5)).status == 422
        assert open_files() == before


# The parts


def medium(data: bytes) -> Medium:
    return Medium(0, MediaKind.IMAGE, FORMATS[0], Content(len(data), memory=data))


async def whole(body: LargeBody) -> bytes:
    return b"".join([block async for block in body.blocks()])


@pytest.mark.parametrize("size", [1, 2, 3, 786_431, 786_432, 786_433, 2_000_000])
async def test_a_body_is_the_json_it_stands_for(tmp_path: Path, size: int) -> None:
    data = os.urandom(size)
    spool = Spool(str(tmp_path), memory_limit=1000)
    await spool.write(data)
    content = await spool.finish()
    parts = [TextPart('"@\\'), replace(medium(b"x"), content=content), TextPart("é"), medium(b"yz")]
    message = ChatMessage(parts)
    content.close()
    body = message.body({"model": "m"})
    encoded = await whole(body)
    assert len(encoded) == body.length
    url = "data:image/jpeg;base64,"
    assert orjson.loads(encoded) == {
        "model": "m",
        "messages": [
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": '"@\\'},
                    {"type": "image_url", "image_url": {"url": url + _base64(data)}},
                    {"type": "text", "text": "é"},
                    {"type": "image_url", "image_url": {"url": url + _base64(b"yz")}},
                ],
            }
        ],
    }
    # A second try sends the same.
    assert await whole(message.body({"model": "m"})) == encoded
    message.close()
    message.close()


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


@pytest.mark.parametrize("kind", MediaKind)
def test_the_samples_are_what_they_are_called(kind: MediaKind) -> None:
    found = sample(kind)
    assert found.kind is found.format.kind is kind
    limits = DecodedLimits(64 * 64, 1.1)
    limits.check(found.format, found.content.read_at, found.content.size)


def test_plain_prompts_are_not_to_be_had() -> None:
    with pytest.raises(SettingsError, match="chat template only"):
        remote_engine(Settings(upstream=("http://127.0.0.1:1",), media_prompt="plain"), None, [])
