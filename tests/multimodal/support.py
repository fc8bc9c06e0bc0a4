"""What the tests on real multimodal models share: asking, and driving vLLM directly."""

from __future__ import annotations

import asyncio
import io
import os
import struct
import tempfile
import uuid
import wave
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from proxy.media.content import Content, Medium
from tests.e2e.support import without_times
from tests.support import RawResponse, RunningGateway, connection, read_response, request_bytes
from translators.media_formats import HEAD_BYTES, sniff

if TYPE_CHECKING:
    from tests.multimodal.engine import Noted, NotingEngine

MULTIMODAL = [pytest.mark.multimodal, pytest.mark.asyncio(loop_scope="module")]
"""The marks of a module: its tests share the engine's event loop."""
PATIENCE = 120.0
NEW_TOKENS = 8
RED, BLUE = (255, 0, 0), (0, 0, 255)


@dataclass(frozen=True)
class Gateway:
    """A gateway before a multimodal model."""

    running: RunningGateway
    root: Path
    """Its directory of media files."""

    def file(self, name: str, data: bytes) -> str:
        """A medium in the directory; its path."""
        (self.root / name).write_bytes(data)
        return str(self.root / name)

    async def send(self, body: bytes | dict[str, Any]) -> RawResponse:
        """One request and its whole answer."""
        async with connection(self.running.port) as client, asyncio.timeout(PATIENCE):
            client.send(request_bytes(body))
            return await read_response(client.reader)

    async def ask(self, *parts: Any, **parameters: Any) -> RawResponse:
        """The same for a greedy one with details."""
        asked = {"max_new_tokens": NEW_TOKENS, "do_sample": False, "details": True, **parameters}
        return await self.send({"id": "same", "text_input": list(parts), "parameters": asked})

    async def text(self, *parts: Any) -> str:
        """The whole text of a request that goes well."""
        response = await self.ask(*parts)
        assert response.status == 200, response.body
        assert response.complete
        return "".join(frame["text_output"] for frame in response.frames)

    async def frames(self, *parts: Any) -> list[bytes]:
        """The frames of a request that goes well, without the figures of their times."""
        return without_times(await self.ask(*parts))


@dataclass(frozen=True)
class Seeing(Gateway):
    """The one with the engine in this process."""

    engine: NotingEngine

    @property
    def llm(self) -> Any:
        """vLLM's own engine, to drive it directly."""
        return self.engine._engine

    @property
    def idle(self) -> bool:
        """Whether nothing is left of any request."""
        load = self.engine.load()
        busy = len(self.llm.output_processor.request_states) + load.running + load.waiting
        return not (busy or self.running.gateway.live)

    async def tokens(self, *parts: Any) -> list[int]:
        """The ids of the tokens of a request that goes well, each of them a frame."""
        response = await self.ask(*parts)
        assert response.status == 200, response.body
        assert response.complete
        made = self.engine.noted[-1].made
        assert len(made) == len(response.frames)
        said = "".join(frame["text_output"] for frame in response.frames)
        assert said == self.llm.get_tokenizer().decode(made, skip_special_tokens=True)
        return made

    async def direct(self, prompt: str, **media: Any) -> Noted:
        """What vLLM's own `generate` makes of a prompt, without anything of ours."""
        from vllm import SamplingParams, TokensPrompt

        from tests.multimodal.engine import Noted

        ids = self.llm.get_tokenizer().encode(prompt, add_special_tokens=False)
        final = None
        async for output in self.llm.generate(
            TokensPrompt(prompt_token_ids=ids, multi_modal_data=media),
            SamplingParams(max_tokens=NEW_TOKENS, temperature=0.0),
            uuid.uuid4().hex,
        ):
            final = output
        assert final is not None
        return Noted(list(final.prompt_token_ids), list(final.outputs[0].token_ids))

    def in_template(self, content: Any) -> str:
        """A user's message in the model's own chat template."""
        return str(
            self.llm.get_tokenizer().apply_chat_template(
                [{"role": "user", "content": content}], tokenize=False, add_generation_prompt=True
            )
        )


def picture(colour: tuple[int, int, int], size: tuple[int, int] = (56, 56)) -> Any:
    """A PIL image."""
    from PIL import Image

    return Image.new("RGB", size, colour)


def encoded(image: Any, image_format: str = "PNG") -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, image_format)
    return buffer.getvalue()


def film(
    colour: tuple[int, int, int], name: str = "x.mp4", codec: str = "mp4v", *, frames: int = 8
) -> bytes:
    """Two seconds of one colour, or another number of frames of a quarter of a second."""
    import cv2
    import numpy as np

    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, name)  # noqa: PTH118 - a string is what cv2 wants
        writer = cv2.VideoWriter(path, cv2.VideoWriter_fourcc(*codec), 4, (64, 64))
        frame = np.full((64, 64, 3), colour[::-1], np.uint8)
        for _ in range(frames):
            writer.write(frame)
        writer.release()
        return Path(path).read_bytes()


def tone(hertz: float, seconds: float = 1.0, *, rate: int = 16000) -> bytes:
    """A WAV of one tone."""
    import numpy as np

    wave_form = np.sin(2 * np.pi * hertz * np.arange(int(seconds * rate)) / rate)
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes((wave_form * 20000).astype("<i2").tobytes())
    return buffer.getvalue()


def samples(wav: bytes) -> Any:
    """What a WAV holds, as vLLM takes it: numbers from -1 to 1, and their rate."""
    import numpy as np

    with wave.open(io.BytesIO(wav)) as file:
        data = np.frombuffer(file.readframes(file.getnframes()), "<i2")
        return (data / 32768).astype(np.float32), file.getframerate()


def with_size(png: bytes, width: int, height: int) -> bytes:
    """A PNG whose header claims another size."""
    header = png[12:16] + struct.pack(">II", width, height) + png[24:29]
    return png[:12] + header + struct.pack(">I", zlib.crc32(header)) + png[33:]


def with_bytes(png: bytes, at: int, data: bytes) -> bytes:
    """A PNG with other bytes in its one chunk of pixels, and the checksum of these."""
    (size,) = struct.unpack(">I", png[33:37])
    chunk = png[37:at] + data + png[at + len(data) : 41 + size]
    return png[:37] + chunk + struct.pack(">I", zlib.crc32(chunk)) + png[45 + size :]


def medium(data: bytes) -> Medium:
    """A fetched medium, the second part of its request."""
    file_format = sniff(data[:HEAD_BYTES])
    assert file_format is not None
    return Medium(1, file_format.kind, file_format, Content(len(data), memory=data))
