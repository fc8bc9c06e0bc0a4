"""Video, and images beside it, before a real model whose chat template knows parts."""

from __future__ import annotations

from typing import Any

import pytest

from proxy.engines.media_prompt import MediaPrompts
from tests.media_support import data_url, image, mp4, text
from tests.multimodal.support import (
    BLUE,
    MULTIMODAL,
    RED,
    Gateway,
    Seeing,
    encoded,
    film,
    medium,
    picture,
)
from translators.media import TextPart
from translators.media_formats import MediaKind

pytestmark = MULTIMODAL

MODEL = "tiny-qwen2-vl"
FLAGS = ("--limit-mm-per-prompt", '{"image": 2, "video": 1}')


def video(data: bytes, media_type: str = "video/mp4") -> dict[str, Any]:
    return {"type": "video_url", "video_url": data_url(data, media_type)}


async def test_the_model_says_what_it_takes(seeing: Seeing) -> None:
    assert seeing.running.gateway.info.media == {MediaKind.IMAGE: 2, MediaKind.VIDEO: 1}


async def test_different_films_give_different_tokens_and_the_same_the_same(seeing: Seeing) -> None:
    question = text("What is it?")
    red = await seeing.tokens(question, video(film(RED)))
    assert await seeing.tokens(question, video(film(RED))) == red
    assert await seeing.tokens(question, video(film(BLUE))) != red
    assert await seeing.tokens(question) != red


@pytest.mark.parametrize("colour", [RED, BLUE])
async def test_prompt_and_tokens_are_those_of_vllm_driven_directly(
    seeing: Seeing, colour: tuple[int, int, int]
) -> None:
    """The template names images and videos; vLLM gets the picture and the frames themselves."""
    shown, moving = picture(colour), film(colour)
    await seeing.tokens(
        text("What?"), image(data_url(encoded(shown))), video(moving), text(" is it")
    )
    content = [
        {"type": "text", "text": "What?"},
        {"type": "image"},
        {"type": "video"},
        {"type": "text", "text": " is it"},
    ]
    direct = await seeing.direct(
        seeing.in_template(content), image=shown, video=[frames(seeing, moving)]
    )
    assert seeing.engine.noted[-1] == direct


async def test_plain_prompts_take_the_same_frames(seeing: Seeing) -> None:
    from proxy.engines.embedded import _media_tools

    moving = film(RED)
    plain = MediaPrompts(seeing.llm, _media_tools(), "plain", 10**8, 60)
    try:
        prompt = await plain.prepare([TextPart("What?"), medium(moving)])
    finally:
        # It has taken the place of the engine's own connector.
        seeing.engine._prompts = seeing.engine._make_prompts()
    await seeing.tokens(text("What?"), video(moving))
    places = [
        ids.count(seeing.llm.get_tokenizer().convert_tokens_to_ids("<|video_pad|>"))
        for ids in (prompt.ids, seeing.engine.noted[-1].prompt)
    ]
    assert places == [places[0]] * 2
    assert places[0]


def frames(seeing: Seeing, data: bytes) -> Any:
    """The frames that vLLM's own loader takes of a film for this model."""
    from vllm.multimodal.media import MediaConnector
    from vllm.transformers_utils.processor import get_video_processor_cls_name

    config = seeing.llm.vllm_config.model_config
    connector = MediaConnector(media_io_kwargs=config.multimodal_config.media_io_kwargs)
    processor = get_video_processor_cls_name(config)
    return connector.fetch_video(data_url(data, "video/mp4"), video_processor=processor)


async def test_the_sidecar_shows_the_same_frames(seeing: Seeing, sidecar: Gateway) -> None:
    shown, moving = image(data_url(encoded(picture(BLUE)))), video(film(RED))
    other = video(film(BLUE, "x.avi", "MJPG"), "video/x-msvideo")
    made = []
    for parts in (
        [text("What is it?"), moving],
        [text("What is it?"), other],
        [moving, text("and"), shown],
        [shown, text("and"), moving],
    ):
        made.append(await seeing.frames(*parts))
        assert await sidecar.frames(*parts) == made[-1]
    assert len({b"".join(frames) for frames in made}) == len(made)


async def test_the_sidecar_says_what_the_model_takes(sidecar: Gateway) -> None:
    assert set(sidecar.running.gateway.info.media) == {MediaKind.IMAGE, MediaKind.VIDEO}


@pytest.mark.parametrize("size", [(1, 1), (3000, 3), (28, 5800)])
async def test_a_shape_that_the_model_refuses_leaves_the_engine_alive(
    seeing: Seeing, size: tuple[int, int]
) -> None:
    """The model's own processor decides, after decoding: a refusal, or an answer."""
    shown = image(data_url(encoded(picture(RED, size))))
    response = await seeing.ask(text("What?"), shown)
    if size == (1, 1):
        assert response.status == 200
    else:
        assert response.status == 422
        assert response.json["error"].startswith('"text_input[1]" is refused by the model')
    assert await seeing.tokens(text("What?"), image(data_url(encoded(picture(RED)))))


@pytest.mark.parametrize(
    ("name", "codec", "media_type"),
    [("x.avi", "MJPG", "video/x-msvideo"), ("x.wmv", "WMV2", "video/x-ms-wmv")],
)
async def test_other_containers_are_seen(
    seeing: Seeing, name: str, codec: str, media_type: str
) -> None:
    assert await seeing.text(text("What?"), video(film(RED, name, codec), media_type))


async def test_a_local_film_and_an_image_have_an_order(seeing: Seeing) -> None:
    shown = image(data_url(encoded(picture(BLUE))))
    path = seeing.file("x.mp4", film(RED))
    moving = {"type": "video_url", "video_url": {"url": path}}
    first = await seeing.tokens(shown, text("and"), moving)
    assert await seeing.tokens(moving, text("and"), shown) != first


async def test_a_film_that_cannot_be_decoded_is_named(seeing: Seeing) -> None:
    red = await seeing.tokens(video(film(RED)))
    for data in (mp4() * 20, film(RED)[:400]):
        response = await seeing.ask(text("What?"), video(data))
        assert response.status == 422
        assert response.json["error"].startswith('"text_input[1]" ')
    assert await seeing.tokens(video(film(RED))) == red


@pytest.mark.parametrize(("name", "codec"), [("x.mp4", "mp4v"), ("x.avi", "MJPG")])
async def test_a_film_of_one_frame_is_seen_or_told(seeing: Seeing, name: str, codec: str) -> None:
    """The loader of vLLM 0.23 reads it, that of 0.32 finds no frame in it. Both read two."""
    still, moving = (film(RED, name, codec, frames=frames) for frames in (1, 2))
    response = await seeing.ask(text("What?"), video(still))
    if _is_read(seeing, still):
        assert response.status == 200
    else:
        assert response.status == 422
        assert response.json["error"] == (
            '"text_input[1]" has a single frame, and the video loader of this model needs two'
        )
    assert await seeing.tokens(text("What?"), video(moving))


def _is_read(seeing: Seeing, data: bytes) -> bool:
    """Whether vLLM's own loader finds a frame."""
    try:
        loaded = frames(seeing, data)
    except ArithmeticError:
        return False
    return len(getattr(loaded, "media", loaded)[0]) > 0


@pytest.mark.parametrize("marked", ["<|image_pad|>", "<|video_pad|>", "<|vision_start|>"])
async def test_text_that_stands_for_a_medium_is_named(seeing: Seeing, marked: str) -> None:
    shown = image(data_url(encoded(picture(RED))))
    response = await seeing.ask(text("What"), text(f" is {marked} here?"), shown)
    assert response.status == 422
    assert response.json["error"] == (
        f'"text_input[1]" holds "{marked}", which marks a medium for this model'
    )


async def test_what_the_server_cannot_decode_is_named(seeing: Seeing, sidecar: Gateway) -> None:
    """A film of one frame, too, on which the server of 0.32 fails with 500."""
    still = film(RED, frames=1)
    bad = [mp4() * 20, film(RED)[:400], *([] if _is_read(seeing, still) else [still])]
    for data in bad:
        response = await sidecar.ask(text("What?"), video(data))
        assert response.status == 422
        assert response.json["error"].startswith('"text_input[1]" is refused by the server')
    assert (await sidecar.ask(text("What?"), video(film(RED)))).status == 200


async def test_frames_have_a_limit(seeing: Seeing) -> None:
    assert seeing.engine._prompts is not None
    table = seeing.engine._prompts._table
    allowed, table._max_pixels = table._max_pixels, 64 * 64 - 1
    try:
        response = await seeing.ask(text("What?"), video(film(RED)))
    finally:
        table._max_pixels = allowed
    assert response.status == 422
    assert "frames of 4096 pixels" in response.json["error"]


async def test_all_frames_that_are_taken_have_a_limit(seeing: Seeing) -> None:
    assert seeing.engine._prompts is not None
    table, long = seeing.engine._prompts._table, film(RED, frames=24)
    taken = frames(seeing, long)
    count = len(getattr(taken, "media", taken)[0])
    assert count > 4
    allowed, table._max_pixels = table._max_pixels, 64 * 64
    try:
        response = await seeing.ask(text("What?"), video(long))
    finally:
        table._max_pixels = allowed
    assert response.status == 422
    assert response.json["error"] == (
        f'"text_input[1]" has {count} frames of 4096 pixels to be shown, '
        "16384 pixels are allowed in all"
    )
    assert await seeing.tokens(text("What?"), video(long))
