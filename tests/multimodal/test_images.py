"""Images before a real model: it sees them, in their order, as vLLM itself shows them."""

from __future__ import annotations

import asyncio
import base64
from pathlib import Path

import pytest

from proxy.engines.embedded import _media_tools
from proxy.engines.media_prompt import MediaPrompts
from proxy.media.content import PromptPart
from tests.e2e.support import without_times
from tests.media_support import HOST, FakeDns, data_url, image, media_host, open_files, serves, text
from tests.multimodal.support import (
    BLUE,
    MULTIMODAL,
    RED,
    Gateway,
    Seeing,
    encoded,
    medium,
    picture,
    with_bytes,
    with_size,
)
from tests.support import connection, eventually, request_bytes
from translators.media import TextPart

pytestmark = MULTIMODAL

MODEL = "tiny-llava"
FLAGS = ("--limit-mm-per-prompt", '{"image": 3}')
PAGE_REQUEST = (Path(__file__).parent / "page_request.json").read_bytes()
"""The page's own example, byte for byte."""
RED_PNG, BLUE_PNG = encoded(picture(RED)), encoded(picture(BLUE))


async def test_different_images_give_different_tokens_and_the_same_the_same(seeing: Seeing) -> None:
    red, blue = image(data_url(RED_PNG)), image(data_url(BLUE_PNG))
    question = text("What is it?")
    first = await seeing.tokens(question, red)
    assert await seeing.tokens(question, red) == first
    assert await seeing.tokens(question, blue) != first
    assert await seeing.tokens(question) != first


async def test_two_images_have_an_order(seeing: Seeing) -> None:
    red, blue, word = image(data_url(RED_PNG)), image(data_url(BLUE_PNG)), text("and")
    assert await seeing.tokens(red, word, blue) != await seeing.tokens(blue, word, red)
    assert await seeing.tokens(red, blue, word) != await seeing.tokens(red, word, blue)


@pytest.mark.parametrize("colour", [RED, BLUE])
async def test_prompt_and_tokens_are_those_of_vllm_driven_directly(
    seeing: Seeing, colour: tuple[int, int, int]
) -> None:
    """Token by token. The template writes the beginning token, which must not come twice."""
    shown = picture(colour)
    await seeing.tokens(text("What is it?"), image(data_url(encoded(shown))))
    direct = await seeing.direct(seeing.in_template("What is it?\n<image>"), image=shown)
    assert seeing.engine.noted[-1] == direct
    assert direct.prompt.count(seeing.llm.get_tokenizer().convert_tokens_to_ids("<image>")) == 16


async def test_two_images_are_those_of_vllm_driven_directly(seeing: Seeing) -> None:
    pictures = [picture(RED), picture(BLUE, (80, 40))]
    urls = [image(data_url(encoded(each))) for each in pictures]
    await seeing.tokens(urls[0], text("or"), urls[1], text("?"))
    prompt = seeing.in_template("<image>\nor\n<image>\n?")
    assert seeing.engine.noted[-1] == await seeing.direct(prompt, image=pictures)


async def test_the_pages_example_as_printed_with_a_local_file(seeing: Seeing) -> None:
    path = seeing.file("test.png", RED_PNG)
    response = await seeing.send(PAGE_REQUEST.replace(b"/xxxx/test.png", path.encode()))
    assert response.status == 200
    assert response.complete
    assert 1 <= len(response.frames) <= 20
    first, last = response.frames[0], response.frames[-1]
    assert first["id"] == "a123"
    assert first["prefill_time"] > 0
    assert last["details"]["generated_tokens"] == len(response.frames)


async def test_every_source_shows_the_same(seeing: Seeing) -> None:
    path = seeing.file("red.png", RED_PNG)
    async with media_host(serves(RED_PNG)) as host:
        seeing.running.gateway.media._downloader._look_ups._resolve = FakeDns(
            {HOST: [["127.0.0.1"]]}
        )
        values = [
            path,
            f"file://{path}",
            data_url(RED_PNG),
            base64.b64encode(RED_PNG).decode(),
            host.url(),
        ]
        made = [await seeing.tokens(text("What?"), image(value)) for value in values[:-1]]
        assert made == [made[0]] * 4
        # No host is allowed here, whatever a client sends; vLLM never sees the URL.
        response = await seeing.ask(text("What?"), image(values[-1]))
        assert response.status == 422
        assert host.requests == []


async def test_jpeg_and_odd_sizes_are_seen(seeing: Seeing) -> None:
    for data in (
        encoded(picture(RED, (1, 1))),
        encoded(picture(RED, (500, 3)), "JPEG"),
        encoded(picture(RED).convert("P")),
        encoded(picture(RED).convert("RGBA")),
        encoded(picture(RED).convert("L"), "JPEG"),
        encoded(picture(RED).convert("1")),
    ):
        assert await seeing.text(text("What?"), image(data_url(data)))


@pytest.mark.parametrize(
    "data",
    [
        RED_PNG[:60],
        RED_PNG[:33],
        encoded(picture(RED), "JPEG")[:200],
        with_size(RED_PNG, 57, 56),
        # vLLM takes these three for black pictures: it hides the first error of a PNG.
        RED_PNG[:45] + bytes(20) + RED_PNG[65:],
        RED_PNG[:43] + b"\xff" * 20 + RED_PNG[63:],
        with_bytes(RED_PNG, 43, b"\xff" * 20),
        # Something that Pillow knows, behind the first bytes of a JPEG.
        b"\xff\xd8\xff\xc0\0\x0b\x08\0\x40\0\x40\1\1\x11\0".ljust(2048, b"\0")
        + b"PCD_"
        + bytes(800_000),
    ],
    ids=["cut", "no data", "cut jpeg", "another size", "zeros", "ones", "sum", "photo cd"],
)
async def test_an_image_that_cannot_be_decoded_is_named(seeing: Seeing, data: bytes) -> None:
    response = await seeing.ask(text("What?"), image(data_url(RED_PNG)), image(data_url(data)))
    assert response.status == 422
    # Some are found out by their headers, before anything decodes them.
    rules = ("cannot be decoded as image", "is a broken PNG", "is a broken JPEG")
    assert response.json["error"] in [f'"text_input[2]" {rule}' for rule in rules]
    assert await seeing.tokens(text("What?"), image(data_url(RED_PNG)))


@pytest.mark.parametrize("plain", ["<image>", "what is <image> here", "<image> <image>"])
async def test_text_that_stands_for_an_image_is_named(
    seeing: Seeing, sidecar: Gateway, plain: str
) -> None:
    red = image(data_url(RED_PNG))
    assert seeing.running.gateway.info.placeholders == ("<image>",)
    for gateway in (seeing, sidecar):
        response = await gateway.ask(text("What?"), red, text(plain))
        assert response.status == 422
        assert response.json["error"] == (
            '"text_input[2]" holds "<image>", which marks a medium for this model'
        )
        # Without a medium it is text.
        assert (await gateway.ask(text(plain))).status == 200


async def test_the_models_own_limit_names_the_part(seeing: Seeing) -> None:
    red = image(data_url(RED_PNG))
    assert await seeing.text(red, red, red, text("?"))
    response = await seeing.ask(red, red, red, text("?"), red)
    assert response.status == 422
    assert response.json["error"].startswith('"text_input[4]" is one image too many')
    response = await seeing.ask(text("?"), {"type": "audio_url", "audio_url": "AAAA"})
    assert response.json["error"].startswith('"text_input[1]" holds audio')


async def test_the_tokens_of_images_count(seeing: Seeing) -> None:
    red = image(data_url(RED_PNG))
    room = seeing.running.gateway.prompt_limit
    words = " a" * (room - 60)
    assert (await seeing.ask(text(words), max_new_tokens=1)).status == 200
    response = await seeing.ask(text(words), red, red, red)
    assert response.status == 424


async def test_a_request_refused_after_its_image_was_seen_spoils_nothing(seeing: Seeing) -> None:
    """vLLM keeps what it sent of images: a prompt that is never sent must not count as sent."""
    green = image(data_url(encoded(picture((0, 255, 0)))))
    response = await seeing.ask(text("What?"), green, top_p=5)
    assert response.status == 422
    first = await seeing.tokens(text("What?"), green)
    assert await seeing.tokens(text("What?"), green) == first


async def test_many_at_once_see_each_their_own(seeing: Seeing) -> None:
    colours = [(step * 16, 255 - step * 16, step * 7) for step in range(12)]
    urls = [image(data_url(encoded(picture(colour)))) for colour in colours]
    alone = [await seeing.text(text("What?"), url) for url in urls]
    together = await asyncio.gather(*(seeing.text(text("What?"), url) for url in urls))
    assert list(together) == alone


async def test_a_client_that_leaves_frees_everything(seeing: Seeing) -> None:
    await eventually(lambda: seeing.idle)
    before = open_files()
    body = {
        "text_input": [text("What?"), image(data_url(RED_PNG))],
        "parameters": {"max_new_tokens": 900},
    }
    async with connection(seeing.running.port) as client:
        client.send(request_bytes(body))
        async with asyncio.timeout(60):
            await client.reader.readuntil(b"data:")
    await eventually(lambda: seeing.idle)
    assert open_files() == before
    assert seeing.engine._prompts is not None
    assert not seeing.engine._prompts._table._media


async def test_plain_prompts_hold_the_models_placeholder_in_place(seeing: Seeing) -> None:
    """`media_prompt` plain: text and placeholders in order, and nothing else."""
    plain = MediaPrompts(seeing.llm, _media_tools(), "plain", 10**8, 60)
    try:
        parts: list[PromptPart] = [TextPart("What is it? "), medium(RED_PNG), TextPart(" and ")]
        parts.append(medium(BLUE_PNG))
        prompt = await plain.prepare(parts)
        tokenizer = seeing.llm.get_tokenizer()
        seen = "<image>" * 16
        begin = tokenizer.bos_token
        assert tokenizer.decode(prompt.ids) == f"{begin}What is it? {seen} and {seen}"
    finally:
        # It has taken the place of the engine's own connector.
        seeing.engine._prompts = seeing.engine._make_prompts()


async def test_the_sidecar_shows_the_same_frames(seeing: Seeing, sidecar: Gateway) -> None:
    """Of images from every source, between texts, in any order."""
    red, blue = image(data_url(RED_PNG)), image(seeing.file("blue.png", BLUE_PNG))
    photo = image(data_url(encoded(picture(BLUE, (80, 40)), "JPEG"), "image/jpeg"))
    made = []
    for parts in (
        [text("What is it?"), red],
        [text("What is it?"), blue],
        [red, text("and"), blue],
        [blue, text("and"), red],
        [text("a"), photo, text("b"), red, blue],
        [text("no image"), text(" at all")],
    ):
        made.append(await seeing.frames(*parts))
        assert await sidecar.frames(*parts) == made[-1]
    assert len({b"".join(frames) for frames in made}) == len(made)


async def test_the_sidecars_page_example(seeing: Seeing, sidecar: Gateway) -> None:
    path = seeing.file("page.png", RED_PNG)
    body = PAGE_REQUEST.replace(b"/xxxx/test.png", path.encode())
    embedded, remote = await seeing.send(body), await sidecar.send(body)
    assert without_times(remote) == without_times(embedded)


async def test_the_server_behind_never_fetches(seeing: Seeing, sidecar: Gateway) -> None:
    """It could: the host is on its own machine. It is asked once, by the gateway."""
    async with media_host(serves(RED_PNG)) as host:
        url = host.url(host="127.0.0.1")
        shown = await sidecar.frames(text("What?"), image(url))
        assert [request.headers["User-Agent"] for request in host.requests] == ["mindie-gateway"]
        assert shown == await seeing.frames(text("What?"), image(data_url(RED_PNG)))
        for refused in (url.replace("127.0.0.1", "localhost"), url.replace("http", "ftp")):
            assert (await sidecar.ask(text("What?"), image(refused))).status == 422
        assert len(host.requests) == 1


async def test_what_the_server_refuses_leaves_it_alive(sidecar: Gateway) -> None:
    red = image(data_url(RED_PNG))
    jpeg = encoded(picture(RED), "JPEG")
    for cut in (RED_PNG[:60], jpeg[: jpeg.index(b"\xff\xda") + 20]):
        response = await sidecar.ask(text("?"), red, image(data_url(cut)))
        assert response.status == 422
        assert response.json["error"].startswith('"text_input[2]" is refused by the server')
    # How many are too many only the server knows.
    assert (await sidecar.ask(text("?"), red, red, red, red)).status == 424
    response = await sidecar.ask(text("?"), {"type": "audio_url", "audio_url": "AAAA"})
    assert response.status == 422
    assert response.json["error"].startswith('"text_input[1]" holds audio')
    assert await sidecar.text(text("?"), red)
