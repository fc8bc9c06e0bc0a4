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


@pytest.mark.parametrize("rate", [16000, 8000, 44100])
@pytest.mark.parametrize("hertz", [440, 3000])
async def test_prompt_and_tokens_are_those_of_vllm_driven_directly(
    seeing: Seeing, hertz: float, rate: int
) -> None:
    """Also of a sound of another rate than the model's, which vLLM resamples."""
    heard = tone(hertz, rate=rate)
    await seeing.tokens(text("What is it?"), audio(heard))
    content = [{"type": "text", "text": "What is it?"}, {"type": "audio", "audio_url": ""}]
    direct = await seeing.direct(seeing.in_template(content), audio=samples(heard))
    assert seeing.engine.noted[-1] == direct
    assert len(set(direct.prompt)) < len(direct.prompt) - 20, "there are no tokens of sound"


async def test_the_sidecar_shows_the_same_frames(seeing: Seeing, sidecar: Gateway) -> None:
    low, high = audio(tone(440)), audio(tone(4000))
    made = []
    slow = audio(tone(440, rate=8000))
    for parts in (
        [text("What is it?"), low],
        [text("What is it?"), slow, high],
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


@pytest.mark.parametrize("samples", [0, 1, 100])
async def test_a_sound_that_is_too_short_is_named(
    seeing: Seeing, sidecar: Gateway, samples: int
) -> None:
    """How short is too short the model decides."""
    low, short = audio(tone(440)), audio(tone(440, samples / 16000))
    for gateway in (seeing, sidecar):
        for parts, index in [([text("What?"), short], 1), ([low, text("and"), short], 2)]:
            response = await gateway.ask(*parts)
            assert response.status == 422
            assert response.json["error"].startswith(f'"text_input[{index}]" ')
    assert await seeing.tokens(low)


async def test_text_that_stands_for_a_sound_is_named(seeing: Seeing) -> None:
    """The sound would be heard there, not where it stands."""
    response = await seeing.ask(audio(tone(440)), text("What is <|AUDIO|> here?"))
    assert response.status == 422
    assert response.json["error"] == (
        '"text_input[1]" holds "<|AUDIO|>", which marks a medium for this model'
    )
    assert await seeing.tokens(text("What is <|AUDIO|> here?"))


async def test_a_model_of_sound_takes_no_images(seeing: Seeing, sidecar: Gateway) -> None:
    for gateway in (seeing, sidecar):
        response = await gateway.ask(text("What?"), image(data_url(png())))
        assert response.status == 422
        assert (
            response.json["error"] == '"text_input[1]" holds image, which the model does not take'
        )
