"""Sound before a real model."""

from __future__ import annotations

from typing import Any

import pytest

from tests.media_support import data_url, flac, image, mp3, png, text
from tests.multimodal.support import MULTIMODAL, Gateway, Seeing, samples, tone

pytestmark = MULTIMODAL

MODEL = "tiny-qwen2-audio"
FLAGS = ("--limit-mm-per-prompt", '{"audio": 2}')


def audio(data: bytes, media_type: str = "audio/wav") -> dict[str, Any]:
    return {"type": "audio_url", "audio_url": data_url(data, media_type)}


async def test_different_sounds_give_different_tokens_and_the_same_the_same(seeing: Seeing) -> None:
    question = text("What is it?")
    low = await seeing.tokens(question, audio(tone(440)))
    assert await seeing.tokens(question, audio(tone(440))) == low
    assert await seeing.tokens(question, audio(tone(4000))) != low
    assert await seeing.tokens(question) != low


async def test_two_sounds_have_an_order(seeing: Seeing) -> None:
    low, high = audio(tone(440)), audio(tone(4000))
    first = await seeing.tokens(low, text("and"), high)
    assert await seeing.tokens(high, text("and"), low) != first


@pytest.mark.parametrize("hertz", [440, 4000])
async def test_prompt_and_tokens_are_those_of_vllm_driven_directly(
    seeing: Seeing, hertz: float
) -> None:
    heard = tone(hertz)
    await seeing.tokens(text("What is it?"), audio(heard))
    content = [{"type": "text", "text": "What is it?"}, {"type": "audio", "audio_url": ""}]
    direct = await seeing.direct(seeing.in_template(content), audio=samples(heard))
    assert seeing.engine.noted[-1] == direct
    assert len(set(direct.prompt)) < len(direct.prompt) - 20, "there are no tokens of sound"


async def test_the_sidecar_shows_the_same_frames(seeing: Seeing, sidecar: Gateway) -> None:
    low, high = audio(tone(440)), audio(tone(4000))
    made = []
    for parts in (
        [text("What is it?"), low],
        [text("What is it?"), high],
        [low, text("and"), high],
        [high, text("and"), low],
    ):
        made.append(await seeing.frames(*parts))
        assert await sidecar.frames(*parts) == made[-1]
    assert len({b"".join(frames) for frames in made}) == len(made)


async def test_a_sound_that_cannot_be_decoded_is_named(seeing: Seeing) -> None:
    low = await seeing.tokens(audio(tone(440)))
    for data, media_type in ((flac(), "audio/flac"), (mp3(200)[:300], "audio/mpeg")):
        response = await seeing.ask(text("What?"), audio(data, media_type))
        assert response.status == 422
        assert response.json["error"].startswith('"text_input[1]" ')
    assert await seeing.tokens(audio(tone(440))) == low


async def test_a_model_of_sound_takes_no_images(seeing: Seeing, sidecar: Gateway) -> None:
    for gateway in (seeing, sidecar):
        response = await gateway.ask(text("What?"), image(data_url(png())))
        assert response.status == 422
        assert (
            response.json["error"] == '"text_input[1]" holds image, which the model does not take'
        )
