"""The list form of text_input over HTTP, with the stub: what arrives, what is refused."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from proxy.engines.base import Prompt
from proxy.engines.stub import STUB_INFO, StubEngine
from proxy.media.build import media_desk
from proxy.media.content import PromptPart
from tests.media_support import (
    HOST,
    SAMPLES,
    FakeDns,
    Watch,
    data_url,
    image,
    jpeg,
    media_host,
    mp3,
    names_in,
    open_files,
    png,
    serves,
    text,
    watching,
)
from tests.page import PAGE_DOCUMENT
from tests.proxy.handlers.test_generate import GENERATE
from tests.support import (
    STOP_PATH,
    STREAM_PATH,
    RawResponse,
    RunningGateway,
    connection,
    eventually,
    generate_body,
    post,
    request_bytes,
    serving,
)
from translators.errors import GatewayError, GenerationError
from translators.media_formats import MediaKind

ALL_MEDIA = replace(STUB_INFO, media=dict.fromkeys(MediaKind, 20))


@asynccontextmanager
async def multimodal(
    tmp_path: Path, resolve: FakeDns | None = None, **changed: Any
) -> AsyncIterator[RunningGateway]:
    """A gateway before a model that takes everything."""
    (tmp_path / "root").mkdir(exist_ok=True)
    (tmp_path / "spool").mkdir(exist_ok=True)
    settings = {
        "allowed_media_domains": HOST,
        "media_private_networks": "127.0.0.1/32",
        "media_root": str(tmp_path / "root"),
        "media_spool_dir": str(tmp_path / "spool"),
        **changed,
    }
    async with serving(StubEngine(info=ALL_MEDIA), **settings) as running:
        dns = resolve or FakeDns({HOST: [["127.0.0.1"]]})
        running.gateway.media = media_desk(running.gateway.settings, dns)
        yield running


async def ask(running: RunningGateway, *parts: Any, **parameters: Any) -> RawResponse:
    return await post(running.port, generate_body(list(parts), **parameters))  # type: ignore[arg-type]


def seen(running: RunningGateway) -> Any:
    """What the engine got, in order."""
    return running.engine.submitted[-1].payload


async def test_the_pages_example_works_with_a_local_file(tmp_path: Path) -> None:
    async with multimodal(tmp_path) as running:
        path = tmp_path / "root" / "test.png"
        path.write_bytes(png())
        response = await post(
            running.port,
            {
                **PAGE_DOCUMENT,
                "text_input": [
                    {"type": "text", "text": PAGE_DOCUMENT["text_input"]},
                    {"type": "image_url", "image_url": str(path)},
                ],
                "parameters": {**PAGE_DOCUMENT["parameters"], "max_new_tokens": 20},
            },
        )
        assert response.status == 200
        assert len(response.frames) == 20
        assert response.frames[0]["id"] == "a123"
        assert seen(running) == (PAGE_DOCUMENT["text_input"], png())


async def test_order_is_kept_and_the_tokens_of_media_count(tmp_path: Path) -> None:
    async with media_host(serves(SAMPLES["mp4"])) as host, multimodal(tmp_path) as running:
        response = await ask(
            running,
            image({"url": data_url(jpeg(), "image/jpeg")}),
            text("one two"),
            {"type": "video_url", "video_url": host.url("/v")},
            text("three"),
            {"type": "audio_url", "audio_url": data_url(mp3(), "audio/mpeg")},
        )
        assert response.status == 200
        assert seen(running) == (jpeg(), "one two", SAMPLES["mp4"], "three", mp3())
        assert len(running.engine.submitted[-1].prompt) == 1 + 2 + 1 + 1 + 1


async def test_media_need_no_text(tmp_path: Path) -> None:
    async with multimodal(tmp_path) as running:
        assert (await ask(running, image(data_url(png())))).status == 200


async def test_a_prompt_that_media_make_too_long_is_424(tmp_path: Path) -> None:
    async with multimodal(tmp_path, max_input_token_len=2) as running:
        assert (await ask(running, text("a"), image(data_url(png())))).status == 200
        response = await ask(running, text("a b"), image(data_url(png())))
        assert response.status == 424
        assert response.json["error_type"] == "Generation Error"


async def test_a_text_model_takes_lists_of_text_and_names_the_medium() -> None:
    async with serving() as running:
        assert (await ask(running, text("one "), text("two"))).texts == [" one", " two", " one"]
        with watching() as watch:
            response = await ask(running, text("a"), image("http://media.test/a.png"))
        assert response.status == 422
        assert response.json == {
            "error": '"text_input[1]" holds image, which the model does not take',
            "error_type": "Input Validation Error",
        }
        assert watch.resolved == []


async def test_text_that_stands_for_a_medium_is_named_before_anything_is_fetched() -> None:
    info = replace(ALL_MEDIA, placeholders=("<image>",))
    async with serving(StubEngine(info=info), allowed_media_domains=HOST) as running:
        with watching() as watch:
            response = await ask(running, text("see <image>"), image(f"http://{HOST}/a.png"))
        assert response.status == 422
        assert response.json == {
            "error": '"text_input[0]" holds "<image>", which marks a medium for this model',
            "error_type": "Input Validation Error",
        }
        assert watch.resolved == []
        # By itself it is text like any other, also as a string.
        assert (await ask(running, text("see <image>"))).status == 200
        assert (await post(running.port, generate_body("see <image>"))).status == 200


async def test_media_come_after_the_text_and_before_the_parameters(tmp_path: Path) -> None:
    """Contract §1: text_input, media, token count, parameters."""
    bad = image("http://evil.example/a.png")
    async with multimodal(tmp_path, max_input_token_len=1) as running:
        for part, parameters, expected in [
            ([text(""), bad], {"top_p": 5}, '"text_input[0]" must have a non-empty string'),
            ([text("a b c"), bad], {"top_p": 5}, '"text_input[1]" gives a URL whose host'),
            ([text("a b"), image(data_url(png()))], {"top_p": 5}, "prompt tokens"),
            ([image(data_url(png()))], {"top_p": 5}, '"top_p"'),
        ]:
            response = await ask(running, *part, **parameters)
            assert expected in response.json["error"]


async def test_no_wrong_parameter_costs_the_engine_anything(tmp_path: Path) -> None:
    async with multimodal(tmp_path) as running:
        assert (await ask(running, image(data_url(png())), top_p=5)).status == 422
        assert running.engine.submitted == []
        await running.settled(refused=1)


async def test_what_the_engine_refuses_while_it_prepares_is_424(tmp_path: Path) -> None:
    class Picky(StubEngine):
        async def prepare(self, parts: Sequence[PromptPart]) -> Prompt:
            raise self.error

        error: GatewayError = GenerationError("the engine refuses this request")

    async with serving(Picky(info=ALL_MEDIA)) as running:
        assert (await ask(running, image(data_url(png())))).status == 424
        await running.settled(refused=1)


@pytest.mark.parametrize("contract", ["documented", "server"])
async def test_hosts_without_a_list_are_the_contracts_affair(tmp_path: Path, contract: str) -> None:
    anywhere = contract == "server"
    async with (
        media_host(serves(png())) as host,
        multimodal(
            tmp_path,
            contract=contract,
            allowed_media_domains=None,
            media_from_any_host=anywhere,
        ) as running,
    ):
        response = await ask(running, image(host.url()))
        assert response.status == (200 if anywhere else 422)


async def test_the_watch_sees_what_is_done(tmp_path: Path) -> None:
    """Else it would prove nothing below."""
    async with media_host(serves(png())) as host, multimodal(tmp_path) as running:
        (tmp_path / "root" / "x.png").write_bytes(png())
        with watching() as watch:
            await ask(running, image(host.url()), image(str(tmp_path / "root" / "x.png")))
            await asyncio.get_running_loop().run_in_executor(None, socket.getaddrinfo, "::1", 1)
        done = touched(watch, running.port, ["png"])
        assert done == [("127.0.0.1", host.port), "::1", "x.png"]


# The attack list: none of these may open a connection or a file.


def local(root: Path) -> list[str]:
    return [
        f"{root}/../secret.png",
        f"{root}/sub/../../secret.png",
        f"file://{root}/../secret.png",
        f"{root}/%2e%2e/secret.png",
        f"{root.parent}/secret.png",
        f"{root}2/secret.png",
        f"{root}/link.png",
        f"{root}/up/secret.png",
        f"{root}/pipe.png",
        f"{root}/zero.png",
        f"{root}/hard.png",
        f"{root}/giant.png",
        f"{root}/nothing.png",
        "/etc/passwd",
        "/etc/passwd.png",
        "/proc/self/environ.png",
        "/dev/stdin.png",
        "secret.png",
        "../secret.png",
        f"{root}/x.png/",
        f"{root}/x.png/.",
        f" {root}/x.png",
        f"{root}\\..\\secret.png",
        f"{root}/secret.png\0.png",
    ]


URLS = [
    "http://127.0.0.1:{port}/a.png",
    "http://localhost:{port}/a.png",
    "http://2130706433:{port}/a.png",
    "http://0x7f000001:{port}/a.png",
    "http://0177.0.0.1:{port}/a.png",
    "http://017700000001:{port}/a.png",
    "http://127.1:{port}/a.png",
    "http://[::1]:{port}/a.png",
    "http://[::ffff:127.0.0.1]:{port}/a.png",
    "http://%31%32%37.0.0.1:{port}/a.png",
    "http://\uff11\uff12\uff17.0.0.1:{port}/a.png",
    "http://127\u30020\u30020\u30021:{port}/a.png",
    "http://169.254.169.254/latest/meta-data/a.png",
    "http://[fd00:ec2::254]/a.png",
    "http://169.254.1.1/a.png",
    "http://[fe80::1]/a.png",
    "http://100.64.0.1/a.png",
    "http://100.100.100.200/a.png",
    "http://10.0.0.1/a.png",
    "http://172.16.0.1/a.png",
    "http://192.168.0.1/a.png",
    "http://[fc00::1]/a.png",
    "http://224.0.0.1/a.png",
    "http://[ff02::1]/a.png",
    "http://0.0.0.0:{port}/a.png",
    "http://inward.test:{port}/a.png",
    "http://mixed.test:{port}/a.png",
    "http://nowhere.test:{port}/a.png",
    "http://user@media.test:{port}/a.png",
    "http://media.test@127.0.0.1:{port}/a.png",
    "http://media.test:80@127.0.0.1:{port}/a.png",
    "http://media.test\\@127.0.0.1:{port}/a.png",
    "http://127.0.0.1:{port}\\@media.test/a.png",
    "http://127.0.0.1:{port}#@media.test/a.png",
    "http://127.0.0.1:{port}?@media.test/a.png",
    "http://media.test.evil.example:{port}/a.png",
    "http://evil-media.test:{port}/a.png",
    "http://media.test.:{port}/a.png",
    "http://media.test\r\n:{port}/a.png",
    "http://media.test%00.evil.example/a.png",
    "ftp://media.test:{port}/a.png",
    "gopher://media.test:{port}/a.png",
    "file://media.test/a.png",
    "jar:http://media.test:{port}/a.png",
    "s3://media.test/a.png",
    "unix:///var/run/docker.sock",
    "//media.test:{port}/a.png",
    "media.test:{port}/a.png",
    " http://127.0.0.1:{port}/a.png",
    "http:media.test/a.png",
    "http://media.test:{port}/" + "a" * 4096,
]
INNER = FakeDns({"inward.test": [["10.0.0.1"]], "mixed.test": [["93.184.216.34", "10.0.0.1"]]})


def touched(watch: Watch, gateway_port: int, hidden: Sequence[str]) -> list[object]:
    """What was done beyond the test's own connection to the gateway."""
    done: list[object] = [peer for peer in watch.connected if peer[1] != gateway_port]
    done += watch.resolved
    return done + [name for name in watch.opened if any(part in name for part in hidden)]


@pytest.mark.parametrize("listed", [True, False])
async def test_no_url_of_the_attack_list_opens_a_connection(tmp_path: Path, listed: bool) -> None:
    hosts = f"{HOST},inward.test,mixed.test,127.0.0.1,0x7f000001,169.254.169.254,10.0.0.1"
    every = {"contract": "server", "allowed_media_domains": None, "media_from_any_host": True}
    chosen: dict[str, Any] = {"allowed_media_domains": hosts} if listed else every
    async with (
        media_host(serves(png())) as inner,
        multimodal(tmp_path, INNER, media_private_networks="", **chosen) as running,
    ):
        for number, url in enumerate(URLS, 1):
            with watching() as watch:
                response = await ask(
                    running, text("a"), image(url.replace("{port}", str(inner.port)))
                )
            assert response.status == 422, url
            error = response.json["error"]
            assert error.startswith('"text_input[1]" '), url
            assert not any(inside in error for inside in ("10.0.0.1", "127.0.0.1", "::1")), error
            assert touched(watch, running.port, []) == [], url
            assert running.outcomes == {"refused": number}
        assert inner.requests == []
        assert running.engine.submitted == []


async def test_no_path_of_the_attack_list_opens_a_file(tmp_path: Path) -> None:
    async with multimodal(tmp_path) as running:
        root = tmp_path / "root"
        secret = tmp_path / "secret.png"
        secret.write_bytes(png())
        (tmp_path / "root2").mkdir()
        (tmp_path / "root2" / "secret.png").write_bytes(png())
        (root / "sub").mkdir()
        (root / "x.png").write_bytes(png())
        (root / "link.png").symlink_to("../secret.png")
        (root / "up").symlink_to("..")
        (root / "zero.png").symlink_to("/dev/zero")
        (root / "hard.png").hardlink_to(secret)
        with (root / "giant.png").open("wb") as file:
            file.truncate(1 << 40)
        os.mkfifo(root / "pipe.png")
        for path in local(root):
            with watching() as watch:
                response = await ask(running, text("a"), image(path))
            assert response.status == 422, path
            error = response.json["error"]
            assert error.startswith('"text_input[1]" '), path
            assert str(tmp_path) not in error
            assert touched(watch, running.port, ["png", "passwd", "environ", "/dev/"]) == [], path
        assert running.engine.submitted == []


async def test_sixty_megabytes_of_base64_are_refused_by_size(tmp_path: Path) -> None:
    body = b'{"text_input":[{"type":"image_url","image_url":"' + b"A" * (60 << 20) + b'"}]}'
    async with multimodal(tmp_path) as running:
        assert (await post(running.port, body)).status == 413
    async with multimodal(tmp_path, body_limit=80 << 20) as running:
        with watching() as watch:
            response = await post(running.port, body)
        assert response.status == 422
        assert "larger than 40 MB" in response.json["error"]
        assert watch.below(tmp_path) == []


# Ends


async def endless(request: web.Request) -> web.StreamResponse:
    """A picture that goes on and on."""
    response = web.StreamResponse()
    await response.prepare(request)
    await response.write(png())
    while True:
        await response.write(bytes(1000))
        await asyncio.sleep(0.01)


async def test_a_client_that_leaves_ends_its_fetch(tmp_path: Path) -> None:
    before = open_files()
    async with media_host(endless) as host, multimodal(tmp_path, media_memory_limit=0) as running:
        async with connection(running.port) as client:
            client.send(request_bytes(generate_body([image(host.url())])))  # type: ignore[arg-type]
            await eventually(lambda: host.requests)
        await asyncio.wait_for(host.dropped.wait(), 5)
        await running.settled(cancelled=1)
        assert running.engine.submitted == []
    assert open_files() == before


async def test_stop_infer_ends_a_fetch_and_a_wait_for_one(tmp_path: Path) -> None:
    before = open_files()
    limits = {"media_memory_limit": 0, "media_concurrency": 1}
    async with (
        media_host(endless) as host,
        multimodal(tmp_path, **limits) as running,
        connection(running.port) as fetching,
        connection(running.port) as waiting,
    ):
        body = {"id": "mine", **generate_body([image(host.url())])}  # type: ignore[arg-type]
        fetching.send(request_bytes(body))
        await eventually(lambda: host.requests)
        waiting.send(request_bytes(body))
        await eventually(lambda: len(running.gateway.admission.preparing) == 2)
        assert (await post(running.port, {"id": "mine"}, STOP_PATH)).status == 200
        for client in (fetching, waiting):
            response = await client.response()
            assert response.complete
            assert response.texts == [""]
        await asyncio.wait_for(host.dropped.wait(), 5)
        assert len(host.requests) == 1
        assert running.engine.submitted == []
        await running.settled(succeeded=3)
    assert open_files() == before


@pytest.mark.parametrize("path", [STREAM_PATH, GENERATE])
@pytest.mark.parametrize(
    ("settings", "clock"),
    [
        ({}, "client timeout"),
        ({"token_timeout": 0.3}, "tokenTimeout"),
        ({"e2e_timeout": 0.3}, "e2e"),
    ],
)
async def test_the_clocks_run_while_media_are_fetched(
    tmp_path: Path, settings: dict[str, float], clock: str, path: str
) -> None:
    async with media_host(endless) as host, multimodal(tmp_path, **settings) as running:
        body = generate_body([image(host.url())], timeout=1)  # type: ignore[arg-type]
        response = await post(running.port, body, path)
        assert response.status == 500
        assert clock in response.json["error"]
        await asyncio.wait_for(host.dropped.wait(), 5)
        await running.settled(failed=1)


async def test_files_are_gone_once_the_prompt_is_made(tmp_path: Path) -> None:
    before = open_files()
    async with (
        media_host(serves(png(filler=5000))) as host,
        multimodal(tmp_path, media_memory_limit=100) as running,
    ):
        (tmp_path / "root" / "x.png").write_bytes(png())
        parts = [
            image(host.url()),
            image(data_url(png(filler=5000))),
            image(str(tmp_path / "root" / "x.png")),
        ]
        assert (await ask(running, *parts)).status == 200
        assert (await ask(running, *parts, image("A" * 8))).status == 422
        assert (await ask(running, *parts, top_p=5)).status == 422
        assert open_files() == before
        assert names_in(tmp_path / "spool") == []
        assert running.gateway.media.reserve._promised == 0


async def test_many_requests_with_media_do_not_disturb_each_other(tmp_path: Path) -> None:
    async with media_host(_numbered) as host, multimodal(tmp_path, media_concurrency=3) as running:
        responses = await asyncio.gather(
            *(ask(running, text(f"n{n}"), image(host.url(f"/{n}"))) for n in range(1, 21))
        )
        assert [response.status for response in responses] == [200] * 20
        got = {request.payload for request in running.engine.submitted}
        assert got == {(f"n{n}", png(n, 1)) for n in range(1, 21)}


async def _numbered(request: web.Request) -> web.StreamResponse:
    return web.Response(body=png(int(request.path[1:]), 1))
