"""Sound before a real model."""

from __future__ import annotations

from typing import Any

from tests.media_support import data_url, flac, image, mp3, png, text
from tests.multimodal.support import MULTIMODAL, Seeing, tone

pytestmark = MULTIMODAL

MODEL = "tiny-qwen2-audio"
FLAGS = ("--limit-mm-per-prompt", '{"audio": 2}')


def audio(data: bytes, media_type: str = "audio/wav") -> dict[str, Any]:
    return {"type": "audio_url", "audio_url": data_url(data, media_type)}


async def test_different_sounds_give_different_tokens_and_the_same_the_same(seeing: Seeing) -> None:
    question = text("What is it?")
    low = await seeing.text(question, audio(tone(440)))
    assert await seeing.text(question, audio(tone(440))) == low
    assert await seeing.text(question, audio(tone(4000))) != low


async def test_two_sounds_have_an_order(seeing: Seeing) -> None:
    low, high = audio(tone(440)), audio(tone(4000))
    assert await seeing.text(low, text("and"), high) != await seeing.text(high, text("and"), low)


async def test_a_sound_that_cannot_be_decoded_is_named(seeing: Seeing) -> None:
    for data, media_type in ((flac(), "audio/flac"), (mp3(200)[:300], "audio/mpeg")):
        response = await seeing.ask(text("What?"), audio(data, media_type))
        assert response.status == 422
        assert response.json["error"].startswith('"text_input[1]" ')


async def test_a_model_of_sound_takes_no_images(seeing: Seeing) -> None:
    response = await seeing.ask(text("What?"), image(data_url(png())))
    assert response.status == 422
    assert response.json["error"] == '"text_input[1]" holds image, which the model does not take'
