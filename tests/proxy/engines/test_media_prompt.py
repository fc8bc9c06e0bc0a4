"""What vLLM may read: the media of our own requests, and nothing that a client names."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from proxy.engines import media_prompt
from proxy.engines.media_prompt import (
    NO_MEDIA,
    MediaPrompts,
    MediaTable,
    make_connector,
    shortest,
    warn_about_resampler,
)
from proxy.engines.video_check import Film
from proxy.media.content import Content, Medium, PromptPart, Spool
from tests.media_support import SAMPLES, open_files
from tests.support import eventually
from translators.errors import InvalidInput, ServiceUnavailable
from translators.media import TextPart
from translators.media_formats import HEAD_BYTES, MediaKind, sniff

SECRET = "https://bucket.example/x.png?signature=xyzzy"


class Base:
    """In the place of vLLM's MediaConnector."""


async def test_a_url_of_a_client_of_vllms_own_api_is_refused_and_not_repeated() -> None:
    connector: Any = make_connector(Base, MediaTable(100, 10))()
    for url in (SECRET, "data:image/png;base64,AAAA", "file:///etc/passwd"):
        with pytest.raises(ValueError, match="takes no media") as caught:
            await connector.load_from_url_async(url, None)
        assert str(caught.value) == NO_MEDIA
        with pytest.raises(ValueError, match="takes no media"):
            connector.load_from_url(url, None)


def medium(name: str) -> Medium:
    data = SAMPLES[name]
    file_format = sniff(data[:HEAD_BYTES])
    assert file_format is not None
    return Medium(2, file_format.kind, file_format, Content(len(data), memory=data))


class Sampling:
    """In the place of vLLM's loader of videos: takes as many frames as it is told there are."""

    @classmethod
    def compute_frames_index_to_sample(cls, source: int, **options: Any) -> list[int]:
        return list(range(source))


@dataclass
class Loader:
    """In the place of vLLM's loader of one medium."""

    answer: Any
    video_loader: Any = field(default_factory=Sampling)

    def load_bytes(self, data: bytes) -> Any:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


async def load(name: str, answer: Any) -> Any:
    table = MediaTable(100, 10)
    with table.shown([medium(name)]) as ((_, url),):  # type: ignore[misc]
        return await table.load(url, Loader(answer))


async def refusal(name: str, answer: Any) -> str:
    with pytest.raises(InvalidInput) as caught:
        await load(name, answer)
    return caught.value.message


def video(frames: int, *, wrapped: bool = False) -> Any:
    """As vLLM's loaders answer: 0.23 with the frames and what is known of them, 0.32 in a box."""
    found = (np.zeros((frames, 4, 4, 3), np.uint8), {"fps": 4})
    return SimpleNamespace(media=found) if wrapped else found


@pytest.fixture
def frames(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """How many frames the child that tries videos out finds; settable."""
    said = {"count": 8}

    async def check(content: Content, max_pixels: int) -> Film:
        return Film(50, said["count"])

    monkeypatch.setattr(media_prompt, "check_video", check)
    return said


@pytest.mark.parametrize("wrapped", [True, False])
async def test_a_video_without_frames_is_refused(frames: dict[str, int], wrapped: bool) -> None:
    film = video(8, wrapped=wrapped)
    assert await load("mp4", film) is film
    found = await refusal("mp4", video(0, wrapped=wrapped))
    assert found == '"text_input[2]" holds no video'


@dataclass
class SamplingLoader(Loader):
    """One that asks which frames to take, as those of vLLM do: the class, while it decodes."""

    def load_bytes(self, data: bytes) -> Any:
        chosen = type(self.video_loader).compute_frames_index_to_sample(source=self.answer)
        return video(len(chosen))


async def test_the_frames_that_are_taken_have_a_limit(frames: dict[str, int]) -> None:
    """Four times the pixels of a single one, of which 100 are allowed and a frame has 50."""
    table = MediaTable(100, 10)
    with table.shown([medium("mp4")]) as ((_, url),):  # type: ignore[misc]
        loaded, _ = await table.load(url, SamplingLoader(8))
        assert len(loaded) == 8
        with pytest.raises(InvalidInput) as caught:
            await table.load(url, SamplingLoader(9))
    assert caught.value.message == (
        '"text_input[2]" has 9 frames of 50 pixels to be shown, 400 pixels are allowed in all'
    )
    # Other videos are none of its business.
    assert Sampling.compute_frames_index_to_sample(9) == list(range(9))


async def test_what_no_loader_takes_is_refused(frames: dict[str, int]) -> None:
    for name, kind in (("mp4", "video"), ("wav", "audio")):
        found = await refusal(name, OSError("broken"))
        assert found == f'"text_input[2]" cannot be decoded as {kind}'


@pytest.mark.parametrize("answer", [video(0), ZeroDivisionError()])
async def test_a_video_of_one_frame_is_told_so(frames: dict[str, int], answer: Any) -> None:
    frames["count"] = 1
    found = await refusal("mp4", answer)
    assert "has a single frame, and the video loader of this model needs two" in found
    # One that the loader does read passes.
    await load("mp4", video(1))


async def test_a_sound_without_samples_is_refused() -> None:
    sound = (np.zeros(1, np.float32), 16000)
    assert await load("wav", sound) is sound
    found = await refusal("wav", (np.zeros(0, np.float32), 16000))
    assert found == '"text_input[2]" holds no audio'


@pytest.mark.parametrize(
    ("texts", "kept"),
    [
        ({"<image>"}, ("<image>",)),
        ({"Audio 1: <|A|>", "Audio 2: <|A|>", "<|A|>"}, ("<|A|>",)),
        ({"<s><i><e>", "<s>", "<i>", "<e>"}, ("<e>", "<i>", "<s>")),
        ({"<|image_1|>", "<|image_10|>"}, ("<|image_10|>", "<|image_1|>")),
        (set(), ()),
    ],
)
def test_the_shortest_placeholders_are_enough(texts: set[str], kept: tuple[str, ...]) -> None:
    assert shortest(texts) == kept


def parser(method: str, rate: float | None) -> Any:
    return SimpleNamespace(audio_resampler=SimpleNamespace(method=method, target_sr=rate))


def test_a_missing_resampler_is_told(caplog: pytest.LogCaptureFixture) -> None:
    warn_about_resampler(parser("no_such_module", 16000))
    assert caplog.messages == [
        "no_such_module is missing or does not fit: sound of another rate than 16000 Hz is refused"
    ]


@pytest.mark.parametrize(
    "parser",
    [parser("no_such_module", None), parser("json", 16000)],
    ids=["takes every rate", "there"],
)
def test_no_resampler_is_missed_where_none_is_needed(
    parser: Any, caplog: pytest.LogCaptureFixture
) -> None:
    warn_about_resampler(parser)
    assert caplog.messages == []


class LengthError(ValueError):
    """As vLLM's about a prompt that is too long."""

    parameter = "input_tokens"


@dataclass
class Prompts(MediaPrompts):
    """Prompts whose rendering a test decides, by the kinds and texts that are shown."""

    render: Any
    _table: MediaTable = field(default_factory=lambda: MediaTable(100, 10))
    _turns: Any = field(default_factory=nullcontext)
    _tools: Any = field(
        default_factory=lambda: SimpleNamespace(
            refusals=(ValueError, ImportError),
            components=lambda model, rendered: SimpleNamespace(token_ids=rendered),
        )
    )
    _model: Any = None
    _seconds: float = 10
    shown: list[list[str]] = field(default_factory=list)

    async def _render(self, shown: list[Any]) -> Any:
        await asyncio.sleep(0)
        self.shown.append([part if isinstance(part, str) else part[0].value for part in shown])
        return self.render(self.shown[-1])


def picky(kind: MediaKind, error: Exception) -> Any:
    """A model that refuses whatever holds this kind."""

    def render(shown: list[str]) -> list[int]:
        if kind.value in shown:
            raise error
        return [1] * len(shown)

    return render


PARTS: list[PromptPart] = [TextPart("a"), medium("png"), TextPart("b"), medium("wav")]


async def test_the_medium_that_a_model_refuses_is_named() -> None:
    prompts = Prompts(picky(MediaKind.AUDIO, ValueError("too short")))
    with pytest.raises(InvalidInput) as caught:
        await prompts.prepare(PARTS)
    assert caught.value.message.startswith('"text_input[3]" is refused by the model\'s processor')
    # Each by itself, until one fails.
    assert prompts.shown == [["a", "image", "b", "audio"], ["image", "."], ["audio", "."]]


async def test_a_missing_library_is_told_with_the_medium_that_needs_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING)
    prompts = Prompts(picky(MediaKind.IMAGE, ImportError("torchaudio")))
    with pytest.raises(InvalidInput) as caught:
        await prompts.prepare(PARTS)
    assert caught.value.message.startswith('"text_input[1]" needs a library')
    assert "a library for media is missing" in caplog.text


async def test_what_no_medium_is_to_blame_for_is_raised_as_it_comes() -> None:
    def render(shown: list[str]) -> list[int]:
        if len(shown) > 2:
            raise error
        return []

    for error, tries in [(ValueError("odd"), 3), (LengthError(), 1), (RuntimeError("fault"), 1)]:
        prompts = Prompts(render)
        with pytest.raises(type(error)) as caught:
            await prompts.prepare(PARTS)
        assert caught.value is error
        assert len(prompts.shown) == tries


async def test_a_good_prompt_is_rendered_once() -> None:
    prompts = Prompts(lambda shown: [7, 8])
    assert (await prompts.prepare(PARTS)).ids == [7, 8]
    assert len(prompts.shown) == 1


# Time and threads


class SlowLoader:
    """In the place of vLLM's loader: decodes until it may stop. Counts."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.begun = self.at_once = self.most = 0
        self.video_loader = Sampling()
        self.seen: list[bytes] = []
        self._lock = threading.Lock()

    def load_bytes(self, data: bytes) -> Any:
        with self._lock:
            self.begun += 1
            self.at_once += 1
            self.most = max(self.most, self.at_once)
        self.go.wait(10)
        with self._lock:
            self.at_once -= 1
            self.seen.append(data)
        return np.zeros(1, np.float32), 16000


@pytest.fixture
def slow() -> Iterator[SlowLoader]:
    loader = SlowLoader()
    yield loader
    loader.go.set()


class Loading(Prompts):
    """Loads all media at once, as vLLM does."""

    async def _render(self, shown: list[Any]) -> Any:
        loads = [self._table.load(part[1], self.render) for part in shown if part[1:2]]
        await asyncio.gather(*loads)
        return [1]


def loading(loader: SlowLoader, seconds: float = 10) -> Loading:
    turns = asyncio.Semaphore(media_prompt._AT_ONCE)
    return Loading(loader, MediaTable(100, seconds), turns, _seconds=seconds)


async def left(task: asyncio.Task[Any]) -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_who_asks_and_leaves_again_and_again_decodes_no_more_at_a_time(
    slow: SlowLoader,
) -> None:
    prompts = loading(slow)
    for turn in range(20):
        task = asyncio.create_task(prompts.prepare([medium("wav"), medium("wav")]))
        await eventually(lambda: slow.begun == media_prompt._AT_ONCE)
        await asyncio.sleep(0.001 if turn else 0)
        await left(task)
    assert slow.begun == slow.at_once == media_prompt._AT_ONCE
    # Who stays is served as soon as one of these has ended.
    stays = asyncio.create_task(prompts.prepare([medium("wav")] * 5))
    slow.go.set()
    assert (await stays).ids == [1]
    assert slow.most == media_prompt._AT_ONCE


async def test_what_takes_too_long_to_decode_is_answered_in_time(slow: SlowLoader) -> None:
    with pytest.raises(InvalidInput) as caught:
        await loading(slow, 0.02).prepare([TextPart("a"), medium("wav")])
    assert caught.value.message == '"text_input[2]" takes too long to decode'
    # It is still at work.
    assert slow.at_once == 1


async def test_who_waits_for_what_others_decode_is_told_to_come_again(slow: SlowLoader) -> None:
    prompts = loading(slow, 0.1)
    held = [asyncio.create_task(prompts.prepare([medium("wav")])) for _ in range(2)]
    await eventually(lambda: slow.begun == 2)
    for task in held:
        await left(task)
    with pytest.raises(ServiceUnavailable, match="at once") as caught:
        await prompts.prepare([medium("wav")])
    assert caught.value.retry_after
    assert slow.begun == 2


async def test_a_thread_that_nobody_waits_for_keeps_no_ones_file(
    tmp_path: Path, slow: SlowLoader
) -> None:
    before = open_files()
    spool = Spool(str(tmp_path), 0)
    await spool.write(SAMPLES["wav"])
    part = medium("wav")
    part = Medium(part.index, part.kind, part.format, await spool.finish())
    task = asyncio.create_task(loading(slow).prepare([part]))
    await eventually(lambda: slow.begun == 1)
    await left(task)
    part.content.close()
    slow.go.set()
    await eventually(lambda: slow.seen == [SAMPLES["wav"]])
    assert open_files() == before


async def test_few_videos_are_tried_out_at_a_time(
    monkeypatch: pytest.MonkeyPatch, slow: SlowLoader
) -> None:
    at_once = most = 0

    async def check(content: Content, max_pixels: int) -> Film:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        await asyncio.sleep(0.001)
        at_once -= 1
        return Film(16, 8)

    monkeypatch.setattr(media_prompt, "check_video", check)
    slow.go.set()
    await loading(slow).prepare([medium("mp4")] * 6)
    assert most == media_prompt._AT_ONCE
