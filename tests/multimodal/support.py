"""What the tests on real multimodal models share: asking, and driving vLLM directly."""

from __future__ import annotations

import asyncio
import io
import os
import struct
import tempfile
import uuid
import wave
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support import RawResponse, RunningGateway, connection, read_response, request_bytes

if TYPE_CHECKING:
    from proxy.engines.embedded import EmbeddedEngine

MULTIMODAL = [pytest.mark.multimodal, pytest.mark.asyncio(loop_scope="module")]
"""The marks of a module: its tests share the engine's event loop."""
PATIENCE = 120.0
NEW_TOKENS = 8
RED, BLUE = (255, 0, 0), (0, 0, 255)


@dataclass(frozen=True)
class Seeing:
    """A gateway before a multimodal model."""

    running: RunningGateway
    engine: EmbeddedEngine
    root: Path
    """Its directory of media files."""

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

    def file(self, name: str, data: bytes) -> str:
        """A medium in the directory; its path."""
        (self.root / name).write_bytes(data)
        return str(self.root / name)

    async def ask(self, *parts: Any, **parameters: Any) -> RawResponse:
        """One greedy request and its whole answer."""
        asked = {"max_new_tokens": NEW_TOKENS, "do_sample": False, "details": True, **parameters}
        body = {"text_input": list(parts), "parameters": asked}
        async with connection(self.running.port) as client, asyncio.timeout(PATIENCE):
            client.send(request_bytes(body))
            return await read_response(client.reader)

    async def text(self, *parts: Any) -> str:
        """The whole text of a request that goes well."""
        response = await self.ask(*parts)
        assert response.status == 200, response.body
        assert response.complete
        return "".join(frame["text_output"] for frame in response.frames)

    async def direct(self, prompt: str, **media: Any) -> str:
        """The same from vLLM's own `generate`, without anything of ours."""
        from vllm import SamplingParams, TextPrompt

        asked: Any = TextPrompt(prompt=prompt)
        if media:
            asked["multi_modal_data"] = media
        final = None
        async for output in self.llm.generate(
            asked, SamplingParams(max_tokens=NEW_TOKENS, temperature=0.0), uuid.uuid4().hex
        ):
            final = output
        assert final is not None
        ids = list(final.outputs[0].token_ids)
        return str(self.llm.get_tokenizer().decode(ids, skip_special_tokens=True))

    def in_template(self, content: str) -> str:
        """A user's message in the model's chat template, for templates that know only text."""
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


def film(colour: tuple[int, int, int], name: str = "x.mp4", codec: str = "mp4v") -> bytes:
    """Two seconds of one colour."""
    import cv2
    import numpy as np

    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, name)  # noqa: PTH118 - a string is what cv2 wants
        writer = cv2.VideoWriter(path, cv2.VideoWriter_fourcc(*codec), 4, (64, 64))
        frame = np.full((64, 64, 3), colour[::-1], np.uint8)
        for _ in range(8):
            writer.write(frame)
        writer.release()
        return Path(path).read_bytes()


def tone(hertz: float, seconds: float = 1.0) -> bytes:
    """A WAV of one tone."""
    import numpy as np

    rate = 16000
    wave_form = np.sin(2 * np.pi * hertz * np.arange(int(seconds * rate)) / rate)
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes((wave_form * 20000).astype("<i2").tobytes())
    return buffer.getvalue()


def with_size(png: bytes, width: int, height: int) -> bytes:
    """A PNG whose header claims another size."""
    import zlib

    header = png[12:16] + struct.pack(">II", width, height) + png[24:29]
    return png[:12] + header + struct.pack(">I", zlib.crc32(header)) + png[33:]
