"""Media of one request, against a real web server: fetched, counted, limited, and gone."""

from __future__ import annotations

import asyncio
import base64
import gc
import logging
import os
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from proxy.media import desk, turns
from proxy.media.build import media_desk
from proxy.media.content import Content, Medium
from proxy.media.desk import MediaDesk
from proxy.media.local import MediaRoot
from proxy.settings import Settings
from tests.media_support import (
    FIELDS,
    HOST,
    SAMPLES,
    FakeDns,
    data_url,
    image,
    jpeg,
    media_host,
    mp3,
    names_in,
    open_files,
    png,
    raw_host,
    serves,
    text,
    watching,
)
from tests.support import eventually
from translators.errors import InvalidInput, ServiceUnavailable
from translators.media import TextPart, read_parts
from translators.media_formats import MIB, MediaKind

EVERYTHING = dict.fromkeys(MediaKind, 20)
LOOPBACK = "127.0.0.1/32"


def dns(*answers: Sequence[str]) -> FakeDns:
    return FakeDns({HOST: list(answers) or [["127.0.0.1"]]})


@asynccontextmanager
async def opened(
    tmp_path: Path, resolve: FakeDns | None = None, **changed: Any
) -> AsyncIterator[MediaDesk]:
    """A desk that may fetch from the test host."""
    settings = {
        "allowed_media_domains": HOST,
        "media_private_networks": LOOPBACK,
        "media_root": str(tmp_path / "root"),
        "media_spool_dir": str(tmp_path),
        **changed,
    }
    made = media_desk(Settings(**settings), resolve or dns())
    try:
        yield made
    finally:
        await made.close()


async def fetch(made: MediaDesk, *parts: Any) -> list[bytes | str]:
    """What the engine would get: texts, and the bytes of the media."""
    async with made.fetched(read_parts(parts), EVERYTHING) as found:
        return [part.text if isinstance(part, TextPart) else part.content.read() for part in found]


async def refusal(made: MediaDesk, *parts: Any) -> str:
    with pytest.raises(InvalidInput) as caught:
        await fetch(made, *parts)
    return caught.value.message


@pytest.mark.parametrize("name", SAMPLES)
async def test_every_format_comes_from_everywhere(tmp_path: Path, name: str) -> None:
    data, field = SAMPLES[name], FIELDS[name]
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / f"x.{name}").write_bytes(data)
    media_type = {"image_url": "image/png", "video_url": "video/mp4", "audio_url": "audio/mpeg"}
    async with media_host(serves(data)) as host, opened(tmp_path) as made:
        values = [
            host.url("/anything"),
            str(tmp_path / "root" / f"x.{name}"),
            f"file://{tmp_path}/root/x.{name}",
            base64.b64encode(data).decode(),
            data_url(data, media_type[field]),
        ]
        parts = [{"type": field, field: value} for value in values]
        assert await fetch(made, text("a"), *parts, text("b")) == ["a", *[data] * 5, "b"]


@pytest.mark.parametrize("scheme", ["", "file://"])
async def test_a_path_is_taken_as_written(tmp_path: Path, scheme: str) -> None:
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "a%20b.png").write_bytes(png(1, 1))
    (tmp_path / "root" / "a b.png").write_bytes(png(2, 2))
    async with opened(tmp_path) as made:
        for name, data in {"a%20b.png": png(1, 1), "a b.png": png(2, 2)}.items():
            assert await fetch(made, image(f"{scheme}{tmp_path}/root/{name}")) == [data]


async def test_order_is_kept_however_long_each_takes(tmp_path: Path) -> None:
    second = asyncio.Event()

    async def handler(request: web.Request) -> web.StreamResponse:
        if request.path == "/1":
            await second.wait()
        second.set()
        return web.Response(body=png(int(request.path[1:]), 1))

    async with media_host(handler) as host, opened(tmp_path) as made:
        found = await fetch(made, image(host.url("/1")), text("x"), image(host.url("/2")))
        assert found == [png(1, 1), "x", png(2, 1)]


async def test_what_the_engine_gets_says_what_it_is(tmp_path: Path) -> None:
    async with opened(tmp_path) as made:
        parts = read_parts([text("a"), image(data_url(jpeg(), "image/png"))])
        async with made.fetched(parts, EVERYTHING) as found:
            medium = found[1]
            assert isinstance(medium, Medium)
            assert (medium.index, medium.kind) == (1, MediaKind.IMAGE)
            assert medium.format.name == "jpg"
            assert medium.content.size == len(jpeg())


async def test_the_host_is_asked_as_a_browser_would(tmp_path: Path) -> None:
    async with media_host(serves(png())) as host, opened(tmp_path) as made:
        await fetch(made, image(host.url("/a%2Fb.png?x=%20y&z#fragment")))
        (request,) = host.requests
        assert request.raw_path == "/a%2Fb.png?x=%20y&z"
        assert request.headers["Host"] == f"{HOST}:{host.port}"
        assert request.headers["Accept-Encoding"] == "identity"
        assert "Cookie" not in request.headers
        assert "Authorization" not in request.headers


# Addresses


async def test_a_name_is_resolved_once_and_the_checked_address_is_used(tmp_path: Path) -> None:
    """An answer that changes between check and connect changes nothing."""
    changing = dns(["127.0.0.1"], ["169.254.169.254"])
    async with media_host(serves(png())) as host, opened(tmp_path, changing) as made:
        with watching() as watch:
            assert await fetch(made, image(host.url())) == [png()]
        assert changing.asked == [HOST]
        assert watch.connected == [("127.0.0.1", host.port)]
        assert watch.resolved == []
        # The next request is checked anew.
        with watching() as watch:
            assert "public address" in await refusal(made, image(host.url()))
        assert watch.connected == []


INWARD = [
    ["10.0.0.1"],
    ["169.254.169.254"],
    ["100.64.0.1"],
    ["::1"],
    ["::ffff:10.0.0.1"],
    ["fd00:ec2::254"],
    ["fe80::1%eth0"],
    ["224.0.0.1"],
    ["0.0.0.0"],
    ["93.184.216.34", "10.0.0.1"],
    ["127.0.0.1", "192.168.0.1"],
]


@pytest.mark.parametrize("answer", INWARD, ids="+".join)
async def test_a_name_that_resolves_inward_is_not_connected_to(
    tmp_path: Path, answer: list[str]
) -> None:
    async with opened(tmp_path, dns(answer)) as made:
        with watching() as watch:
            found = await refusal(made, text("a"), image(f"http://{HOST}/a.png"))
    assert found.startswith('"text_input[1]" ')
    assert "public address" in found
    assert not any(address in found for address in answer)
    assert watch.connected == []


@pytest.mark.parametrize("listed", [True, False])
async def test_names_that_are_inside_are_not_told_from_names_that_are_not(
    tmp_path: Path, listed: bool
) -> None:
    """Else a client could ask which names there are inside."""
    inside = [[answer] for answer in INWARD]
    absent: list[dict[str, list[Sequence[str]]]] = [{}, {HOST: [[]]}]
    every = {"contract": "server", "allowed_media_domains": None, "media_from_any_host": True}
    chosen: dict[str, Any] = {} if listed else every
    said = set()
    for answers in [{HOST: answer} for answer in inside] + absent:
        async with opened(tmp_path, FakeDns(answers), media_private_networks="", **chosen) as made:
            with watching() as watch:
                said.add(await refusal(made, text("a"), image(f"http://{HOST}/a.png")))
            assert watch.connected == []
    assert said == {'"text_input[1]" gives a URL whose host has no public address'}


async def test_a_resolver_that_hangs_is_given_up(tmp_path: Path) -> None:
    async def hang(host: str, port: int) -> Sequence[Any]:
        await asyncio.Event().wait()
        return ()

    settings = Settings(allowed_media_domains=HOST, media_connect_timeout=0.05)
    made = media_desk(settings, hang)
    assert "no public address" in await refusal(made, image(f"http://{HOST}/a.png"))


LITERALS = [
    "127.0.0.1",
    "127.1",
    "2130706433",
    "0x7f000001",
    "017700000001",
    "127.0.0.1.",
    "[::1]",
    "[::ffff:127.0.0.1]",
    "[64:ff9b::7f00:1]",
    "169.254.169.254",
    "100.64.0.1",
    "224.0.0.1",
    "[fe80::1]",
    "0",
]


@pytest.mark.parametrize("spelling", LITERALS)
async def test_an_inner_address_is_refused_in_every_spelling_also_when_all_hosts_are_allowed(
    tmp_path: Path, spelling: str
) -> None:
    settings = Settings(contract="server", media_from_any_host=True)
    made = media_desk(settings, resolve := dns())
    with watching() as watch:
        found = await refusal(made, text("a"), image(f"http://{spelling}:1/a.png"))
    assert "public address" in found
    assert (watch.connected, watch.resolved, resolve.asked) == ([], [], [])


async def test_a_listed_address_is_connected_to(tmp_path: Path) -> None:
    async with (
        media_host(serves(png())) as host,
        opened(tmp_path, allowed_media_domains="127.0.0.1") as made,
    ):
        assert await fetch(made, image(host.url(host="127.0.0.1"))) == [png()]


async def test_the_next_address_is_tried_when_one_does_not_answer(tmp_path: Path) -> None:
    resolve = dns(["127.0.0.2", "127.0.0.1"])
    async with (
        media_host(serves(png())) as host,
        opened(tmp_path, resolve, media_private_networks="127.0.0.0/8") as made,
    ):
        with watching() as watch:
            assert await fetch(made, image(host.url())) == [png()]
        assert watch.connected == [("127.0.0.2", host.port), ("127.0.0.1", host.port)]


async def test_no_list_means_no_host(tmp_path: Path) -> None:
    async with opened(tmp_path, resolve := dns(), allowed_media_domains=None) as made:
        assert "ALLOWED_MEDIA_DOMAINS_ENV" in await refusal(made, image(f"http://{HOST}/a.png"))
        assert resolve.asked == []


async def test_nothing_is_opened_while_any_part_is_wrong(tmp_path: Path) -> None:
    async with media_host(serves(png())) as host, opened(tmp_path, resolve := dns()) as made:
        with watching() as watch:
            found = await refusal(made, image(host.url()), image("http://evil.example/a.png"))
        assert found.startswith('"text_input[1]"')
        assert (watch.connected, resolve.asked) == ([], [])


async def test_a_model_without_the_modality_opens_nothing(tmp_path: Path) -> None:
    async with media_host(serves(png())) as host, opened(tmp_path, resolve := dns()) as made:
        with pytest.raises(InvalidInput, match="does not take"):
            async with made.fetched(read_parts([image(host.url())]), {MediaKind.AUDIO: 1}):
                pass
        assert resolve.asked == []


# Answers


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_redirects_are_not_followed(tmp_path: Path, status: int) -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        return web.Response(status=status, headers={"Location": "http://127.0.0.1:1/"}, body=png())

    async with media_host(handler) as host, opened(tmp_path) as made:
        with watching() as watch:
            assert "redirects are not followed" in await refusal(made, image(host.url()))
        assert watch.connected == [("127.0.0.1", host.port)]


@pytest.mark.parametrize("status", [201, 204, 206, 300, 304, 305, 400, 401, 404, 500, 503])
async def test_only_200_is_an_answer(tmp_path: Path, status: int) -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        return web.Response(status=status, body=None if status in (204, 304) else png())

    async with media_host(handler) as host, opened(tmp_path) as made:
        found = await refusal(made, image(host.url()))
        assert found == f'"text_input[0]" could not be fetched: its host answered {status}'


@pytest.mark.parametrize("encoding", ["gzip", "br", "deflate, gzip", "zstd"])
async def test_a_compressed_answer_is_refused(tmp_path: Path, encoding: str) -> None:
    handler = serves(bytes(1000), **{"Content-Encoding": encoding})
    async with media_host(handler) as host, opened(tmp_path, media_memory_limit=0) as made:
        with watching() as watch:
            assert "compressed" in await refusal(made, image(host.url()))
        assert watch.connected == [("127.0.0.1", host.port)]
        assert watch.below(tmp_path) == []


def coded(*lines: bytes, body: bytes = png()) -> bytes:
    """An answer with these headers."""
    head = b"".join(line + b"\r\n" for line in lines)
    return b"HTTP/1.1 200 OK\r\n" + head + b"\r\n" + body


IN_CHUNKS = b"%x\r\n%s\r\n0\r\n\r\n" % (len(png()), png())


@pytest.mark.parametrize(
    "lines",
    [
        [b"Content-Encoding: identity", b"Content-Encoding: gzip"],
        [b"Content-Encoding: gzip", b"Content-Encoding: identity"],
        [b"Content-Encoding:", b"content-encoding: br"],
        [b"Content-Encoding: identity, gzip"],
        [b"Content-Encoding: identity,", b"Content-Encoding: ,x"],
    ],
)
async def test_every_line_about_compression_is_read(tmp_path: Path, lines: list[bytes]) -> None:
    async with raw_host(coded(*lines)) as host, opened(tmp_path) as made:
        assert "compressed" in await refusal(made, image(host.url()))


@pytest.mark.parametrize(
    "lines",
    [
        [b"Content-Encoding:"],
        [b"Content-Encoding: Identity"],
        [b"Content-Encoding: identity", b"Content-Encoding: , IDENTITY"],
    ],
)
async def test_a_content_coding_that_changes_nothing_is_taken(
    tmp_path: Path, lines: list[bytes]
) -> None:
    async with raw_host(coded(*lines)) as host, opened(tmp_path) as made:
        assert await fetch(made, image(host.url())) == [png()]


@pytest.mark.parametrize("value", [b"chunked", b"Chunked"])
async def test_chunks_are_taken(tmp_path: Path, value: bytes) -> None:
    answer = coded(b"Transfer-Encoding: " + value, body=IN_CHUNKS)
    async with raw_host(answer) as host, opened(tmp_path) as made:
        assert await fetch(made, image(host.url())) == [png()]


@pytest.mark.parametrize(
    "lines",
    [
        [b"Transfer-Encoding: gzip"],
        [b"Transfer-Encoding: identity"],
        [b"Transfer-Encoding: gzip, chunked"],
        [b"Transfer-Encoding: gzip", b"Transfer-Encoding: chunked"],
        [b"Transfer-Encoding: identity, chunked"],
        [b"Transfer-Encoding: chunked, chunked"],
        [b"Transfer-Encoding:"],
    ],
)
async def test_other_transfer_codings_are_refused(tmp_path: Path, lines: list[bytes]) -> None:
    body = IN_CHUNKS if b"chunked" in lines[-1] else png()
    async with raw_host(coded(*lines, body=body)) as host, opened(tmp_path) as made:
        assert "transfer coding" in await refusal(made, image(host.url()))


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"\r\n\r\n",
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n" + png(),
        b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n" + png(),
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 500\r\n\r\n" + png(),
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n" + png(),
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello",
        b"HTTP/1.1 200 OK\r\n" + b"X-A: " + b"a" * 100_000 + b"\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 20\r\n\r\n" + png(),
    ],
)
async def test_a_lying_or_broken_answer_is_refused(tmp_path: Path, answer: bytes) -> None:
    async with raw_host(answer) as host, opened(tmp_path) as made:
        with watching() as watch:
            found = await refusal(made, text("a"), image(host.url()))
        assert found.startswith('"text_input[1]" ')
        assert set(watch.connected) == {("127.0.0.1", host.port)}
        assert watch.below(tmp_path) == []


async def test_an_answer_without_a_length_is_taken(tmp_path: Path) -> None:
    async with raw_host(b"HTTP/1.0 200 OK\r\n\r\n" + png()) as host, opened(tmp_path) as made:
        assert await fetch(made, image(host.url())) == [png()]


@pytest.mark.parametrize(
    "body", [b"", b"\x89PNG", b"<html>not found</html>", mp3(), SAMPLES["mp4"]]
)
async def test_content_decides_whatever_name_and_type_say(tmp_path: Path, body: bytes) -> None:
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "x.png").write_bytes(body)
    handler = serves(body, **{"Content-Type": "image/png"})
    async with media_host(handler) as host, opened(tmp_path) as made:
        parts = [image(host.url("/x.png")), image(str(tmp_path / "root" / "x.png"))]
        parts += [image(data_url(body))] if body else []
        for part in parts:
            found = await refusal(made, text("a"), part)
            assert "is not one of jpg, png" in found or "is empty" in found


@pytest.mark.parametrize("value", ["//host/x", "/data/multimodal_inputs/x", "AAAAAAAA", "*" * 8])
async def test_what_was_taken_for_base64_is_told_so(tmp_path: Path, value: str) -> None:
    """Without a dot and a scheme it is neither path nor URL, whatever it was meant to be."""
    async with opened(tmp_path) as made:
        found = await refusal(made, text("a"), image(value))
    assert found.startswith('"text_input[1]" is neither a URL nor a path with a dot, ')
    assert "base64" in found


@pytest.mark.parametrize("data", [png(40_000, 1), jpeg(60_000, 60_000)])
async def test_an_image_bomb_is_refused(tmp_path: Path, data: bytes) -> None:
    async with opened(tmp_path, media_max_pixels=30_000) as made:
        with watching() as watch:
            assert "pixels" in await refusal(made, image(data_url(data)))
        assert (watch.connected, watch.below(tmp_path)) == ([], [])


async def test_the_images_of_a_request_have_a_limit_together(tmp_path: Path) -> None:
    async with opened(tmp_path, media_max_pixels=100) as made:
        full = image(data_url(png(10, 10)))
        assert len(await fetch(made, *[full] * 4)) == 4
        found = await refusal(made, *[full] * 4, image(data_url(png(1, 1))))
        assert "more than 400 pixels" in found


async def test_sound_that_is_too_long_is_refused(tmp_path: Path) -> None:
    async with opened(tmp_path, media_max_seconds=0.5) as made:
        part = {"type": "audio_url", "audio_url": data_url(SAMPLES["wav"], "audio/x-wav")}
        assert "longer than 0.5 s" in await refusal(made, part)


# Sizes


async def test_a_declared_size_over_the_limit_is_not_even_read(tmp_path: Path) -> None:
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (40 * MIB + 1)
    async with raw_host(answer) as host, opened(tmp_path) as made:
        with watching() as watch:
            assert "larger than 40 MB" in await refusal(made, image(host.url()))
        assert watch.connected == [("127.0.0.1", host.port)]
        assert watch.below(tmp_path) == []


async def test_an_endless_body_is_cut_off(tmp_path: Path) -> None:
    """Bytes are counted as they come, and the host is hung up on."""
    sent = 0

    async def handler(request: web.Request) -> web.StreamResponse:
        nonlocal sent
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(png())
        while True:
            await response.write(bytes(MIB))
            sent += MIB

    async with media_host(handler) as host, opened(tmp_path) as made:
        with watching() as watch:
            assert "larger than 40 MB" in await refusal(made, image(host.url()))
        assert sent < 60 * MIB
        assert watch.connected == [("127.0.0.1", host.port)]
        # One file without a name, which is gone.
        assert set(watch.below(tmp_path)) == {str(tmp_path)}
        assert names_in(tmp_path) == []
        await asyncio.wait_for(host.dropped.wait(), 10)


async def test_a_wrong_type_is_noticed_at_its_first_bytes(tmp_path: Path) -> None:
    sent = 0

    async def handler(request: web.Request) -> web.StreamResponse:
        nonlocal sent
        response = web.StreamResponse()
        await response.prepare(request)
        while True:
            await response.write(bytes(MIB))
            sent += MIB

    async with media_host(handler) as host, opened(tmp_path) as made:
        with watching() as watch:
            assert "is not one of" in await refusal(made, image(host.url()))
        assert sent < 20 * MIB
        # Nothing of it has gone to disk.
        assert watch.below(tmp_path) == []


async def test_the_media_of_a_request_have_a_sum(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(desk, "MAX_REQUEST_BYTES", 3000)
    thousand = png(filler=1000 - len(png()) - 12)
    assert len(thousand) == 1000
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "x.png").write_bytes(thousand)
    local = image(str(tmp_path / "root" / "x.png"))
    async with media_host(serves(thousand)) as host, opened(tmp_path) as made:
        three = [image(host.url()), image(data_url(thousand)), local]
        assert await fetch(made, *three) == [thousand] * 3
        for part in (local, image(data_url(png())), image(host.url())):
            assert "media of this request to more than" in await refusal(made, *three, part)


@pytest.fixture
def without_gc() -> Iterator[None]:
    """What only the collector would free stays."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def times_open(path: Path) -> int:
    """How many descriptors this process has of a file. Collects nothing."""
    links = Path("/proc/self/fd").iterdir()
    return sum(os.path.realpath(link) == str(path) for link in links)


@pytest.mark.usefixtures("without_gc")
async def test_a_file_that_is_too_much_for_the_sum_is_closed_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(desk, "MAX_REQUEST_BYTES", 2 * len(png()))
    (tmp_path / "root").mkdir()
    file = tmp_path / "root" / "x.png"
    file.write_bytes(png())
    local = image(str(file))
    async with opened(tmp_path) as made:
        async with made.fetched(read_parts([local] * 2), EVERYTHING):
            assert times_open(file) == 2
        with pytest.raises(InvalidInput) as kept:
            await fetch(made, *[local] * 3)
        assert times_open(file) == 0
    assert "media of this request to more than" in kept.value.message


@pytest.mark.usefixtures("without_gc")
async def test_a_file_whose_request_leaves_while_it_is_opened_is_closed_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "root").mkdir()
    file = tmp_path / "root" / "x.png"
    file.write_bytes(png())
    begun, go, whole = threading.Event(), threading.Event(), MediaRoot.open

    def slow(self: MediaRoot, *path: Any) -> Content:
        begun.set()
        go.wait(10)
        return whole(self, *path)

    monkeypatch.setattr(MediaRoot, "open", slow)
    async with opened(tmp_path) as made:
        asking = asyncio.create_task(fetch(made, image(str(file))))
        await eventually(begun.is_set)
        asking.cancel()
        go.set()
        with pytest.raises(asyncio.CancelledError) as kept:
            await asking
        assert times_open(file) == 0
    assert kept.value is not None


async def test_base64_is_strict(tmp_path: Path) -> None:
    encoded = base64.b64encode(png()).decode()
    async with opened(tmp_path) as made:
        for value in (
            encoded[:-4] + "====",
            "*" * len(encoded),
            encoded[:40] + "\n" * 4 + encoded[40:],
            encoded[:40] + "é" * 4 + encoded[40:],
            encoded[:40] + "AA==" + encoded[40:],
            encoded.replace("A", "-", 1),
        ):
            found = await refusal(made, text("a"), image("data:image/png;base64," + value))
            assert "base64" in found or "not one of" in found


async def test_large_base64_takes_many_steps_and_comes_out_whole(tmp_path: Path) -> None:
    data = png(filler=3 * MIB + 1)
    async with opened(tmp_path) as made:
        assert await fetch(made, image(data_url(data))) == [data]
        # Two texts, one after the other, are not one.
        twice = base64.b64encode(png(filler=393_000)).decode()
        padded = twice[: 256 * 1024 - 4] + "AA==" + twice
        assert "not valid base64" in await refusal(made, image(padded))


# Times


async def test_a_host_that_sends_nothing_is_given_up(tmp_path: Path) -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        await asyncio.Event().wait()
        return web.Response()

    async with media_host(handler) as host, opened(tmp_path, media_read_timeout=0.1) as made:
        assert "in time" in await refusal(made, image(host.url()))
        await asyncio.wait_for(host.dropped.wait(), 10)


async def test_a_host_that_pauses_is_given_up(tmp_path: Path) -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(png())
        await asyncio.Event().wait()
        return response

    async with media_host(handler) as host, opened(tmp_path, media_read_timeout=0.1) as made:
        assert "in time" in await refusal(made, image(host.url()))


async def trickle(request: web.Request) -> web.StreamResponse:
    """Bytes for ever, each in time."""
    response = web.StreamResponse()
    await response.prepare(request)
    await response.write(png())
    while True:
        await response.write(b"x")
        await asyncio.sleep(0.01)


async def test_a_host_that_trickles_meets_the_total(tmp_path: Path) -> None:
    async with media_host(trickle) as host, opened(tmp_path, media_total_timeout=0.3) as made:
        found = await refusal(made, text("a"), image(host.url()), image(host.url()))
        assert found == '"text_input[1]" could not be fetched within 0.3 s'
        await asyncio.wait_for(host.dropped.wait(), 10)


async def test_a_fetch_is_cancelled_with_its_request(tmp_path: Path) -> None:
    before = open_files()
    async with media_host(trickle) as host, opened(tmp_path, media_memory_limit=0) as made:
        task = asyncio.create_task(fetch(made, image(host.url()), image(host.url())))
        await host.two_asked.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.wait_for(host.dropped.wait(), 10)
        assert made.reserve._promised == 0
    assert names_in(tmp_path) == []
    assert open_files() == before


async def test_one_wrong_medium_ends_the_others(tmp_path: Path) -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        if request.path == "/bad":
            return web.Response(status=404)
        return await trickle(request)

    async with media_host(handler) as host, opened(tmp_path) as made:
        found = await refusal(made, image(host.url("/slow")), image(host.url("/bad")))
        assert found.startswith('"text_input[1]"')
        await asyncio.wait_for(host.dropped.wait(), 10)


# Turns, disk, traces


async def test_only_so_many_requests_are_served_at_once(tmp_path: Path) -> None:
    async with opened(tmp_path, media_concurrency=2) as made:
        gate, inside, most = asyncio.Event(), 0, 0

        async def one() -> None:
            nonlocal inside, most
            async with made.fetched(read_parts([image(data_url(png()))]), EVERYTHING):
                inside += 1
                most = max(most, inside)
                if inside == 2:
                    gate.set()
                await gate.wait()
                await asyncio.sleep(0)
                inside -= 1

        await asyncio.gather(*(one() for _ in range(7)))
        assert most == 2


async def test_text_does_not_wait_for_media(tmp_path: Path) -> None:
    async with (
        opened(tmp_path, media_concurrency=1) as made,
        made.fetched(read_parts([image(data_url(png()))]), EVERYTHING),
    ):
        assert await fetch(made, text("a"), text("b")) == ["a", "b"]


async def test_who_waits_too_long_is_told_to_come_again(tmp_path: Path) -> None:
    async with opened(tmp_path, media_concurrency=1, media_total_timeout=0.05) as made:
        async with made._turns.turn((), asyncio.get_running_loop().time() + 60):
            with pytest.raises(ServiceUnavailable, match="at once") as caught:
                await fetch(made, image(data_url(png())))
        assert caught.value.retry_after
        assert made._turns.waiting == 0


async def test_whose_time_went_by_in_the_queue_is_told_to_come_again(tmp_path: Path) -> None:
    """It was hardly fetched at all: the host is not to blame."""
    async with (
        media_host(trickle) as host,
        opened(tmp_path, media_concurrency=1, media_total_timeout=0.6) as made,
    ):
        async with made._turns.turn((), asyncio.get_running_loop().time() + 60):
            late = asyncio.create_task(fetch(made, image(host.url())))
            await eventually(lambda: made._turns.waiting == 1)
            await asyncio.sleep(0.4)
        with pytest.raises(ServiceUnavailable, match="at once"):
            await late


async def test_one_slow_host_leaves_turns_to_the_others(tmp_path: Path) -> None:
    """Media from elsewhere, and those in the request itself, are served meanwhile."""
    both = {"allowed_media_domains": f"{HOST},other.test", "media_concurrency": 4}
    names = FakeDns({HOST: [["127.0.0.1"]], "other.test": [["127.0.0.1"]]})
    async with (
        media_host(trickle) as slow,
        media_host(serves(png())) as fast,
        opened(tmp_path, names, **both) as made,
    ):
        held = [asyncio.create_task(fetch(made, image(slow.url()))) for _ in range(20)]
        await eventually(lambda: len(slow.requests) == 3)
        for part in (image(fast.url(host="other.test")), image(data_url(png()))):
            assert await fetch(made, part) == [png()]
        assert (len(slow.requests), made._turns.waiting) == (3, 17)
        for task in held:
            task.cancel()
        await asyncio.gather(*held, return_exceptions=True)
        assert made._turns.waiting == 0


async def test_the_queue_is_bounded(tmp_path: Path) -> None:
    async with opened(tmp_path, media_concurrency=1) as made:
        async with made.fetched(read_parts([image(data_url(png()))]), EVERYTHING):
            waiting = [
                asyncio.create_task(fetch(made, image(data_url(png()))))
                for _ in range(turns._WAITING_PER_TURN)
            ]
            await asyncio.sleep(0)
            with pytest.raises(ServiceUnavailable):
                await fetch(made, image(data_url(png())))
        assert await asyncio.gather(*waiting) == [[png()]] * len(waiting)


async def test_a_disk_without_room_is_503(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with media_host(serves(png())) as host, opened(tmp_path) as made:
        monkeypatch.setattr(made.reserve, "free", lambda: 60 * MIB - 1)
        with watching() as watch, pytest.raises(ServiceUnavailable, match="disk"):
            await fetch(made, image(host.url()))
        assert watch.connected == []
        # What stays in memory, or where it is, needs none.
        assert await fetch(made, image(data_url(png()))) == [png()]
        monkeypatch.setattr(made.reserve, "free", lambda: 60 * MIB)
        assert await fetch(made, image(host.url())) == [png()]


async def test_a_small_disk_is_told_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(tmp_path, media_concurrency=10) as made:
        (tmp_path / "root").mkdir()
        monkeypatch.setattr(made.reserve, "free", lambda: 600 * MIB)
        made.report({MediaKind.IMAGE: 1, MediaKind.VIDEO: 0})
        made.report({})
        assert caplog.text == ""
        made.report({MediaKind.VIDEO: 1})
        assert "7680 MB" in caplog.text


async def test_a_missing_root_is_told_only_where_there_are_media(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with opened(tmp_path, media_root="/nowhere/at/all") as made:
        made.report({})
        made.report({MediaKind.IMAGE: 0})
        assert caplog.text == ""
        made.report({MediaKind.IMAGE: 1})
        assert "/nowhere/at/all is not there: no local media" in caplog.text


@pytest.mark.parametrize("limit", [0, MIB])
async def test_everything_is_gone_after_the_block(tmp_path: Path, limit: int) -> None:
    before = open_files()
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "x.png").write_bytes(png())
    async with (
        media_host(serves(png())) as host,
        opened(tmp_path, media_memory_limit=limit) as made,
    ):
        local = image(str(tmp_path / "root" / "x.png"))
        parts = read_parts([image(host.url()), image(data_url(png())), local])
        async with made.fetched(parts, EVERYTHING) as found:
            media = [part for part in found if isinstance(part, Medium)]
            assert names_in(tmp_path) == ["root"]
        assert [medium.content.read() for medium in media] == [b""] * 3
        with pytest.raises(RuntimeError, match="engine"):
            async with made.fetched(parts, EVERYTHING):
                raise RuntimeError("the engine failed")
    assert names_in(tmp_path) == ["root"]
    assert open_files() == before


# Proxies


async def test_proxies_of_the_environment_are_followed_only_when_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with media_host(serves(png(1, 1))) as proxy, media_host(serves(png(2, 2))) as host:
        for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.port}")
        monkeypatch.delenv("no_proxy", raising=False)
        monkeypatch.delenv("NO_PROXY", raising=False)
        async with opened(tmp_path) as made:
            with watching() as watch:
                assert await fetch(made, image(host.url())) == [png(2, 2)]
            assert watch.connected == [("127.0.0.1", host.port)]
        assert proxy.requests == []
        async with opened(tmp_path, media_proxy_from_env=True) as made:
            assert await fetch(made, image(host.url())) == [png(1, 1)]
            # The proxy, too, is told the address that was checked.
            (request,) = proxy.requests
            assert request.raw_path.startswith(f"http://127.0.0.1:{host.port}/")
            assert request.headers["Host"] == f"{HOST}:{host.port}"
        monkeypatch.setenv("no_proxy", HOST)
        async with opened(tmp_path, media_proxy_from_env=True) as made:
            assert await fetch(made, image(host.url())) == [png(2, 2)]
