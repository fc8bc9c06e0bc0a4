"""Whether a video can be decoded without harm: tried out in a process of its own first.

Decoders of video are large and written in C; some files end the process that
reads them (an uncompressed AVI does, with OpenCV 5.0.0). Here that process is a
child, and its end is an answer like any other.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from pathlib import Path
from typing import Final, NamedTuple

from proxy.media.content import Content
from proxy.threads import joined
from translators.media_urls import MediaRefused

log = logging.getLogger(__name__)

_CHILD: Final = Path(__file__).with_name("video_child.py")
_SECONDS: Final = 60
"""Of CPU time, and of real time, that trying out may take."""
_UNREADABLE: Final = "cannot be decoded as video"


class Film(NamedTuple):
    """A video that can be decoded."""

    pixels: int
    """Of one frame."""
    frames: int


async def check_video(content: Content, max_pixels: int) -> Film:
    """What there is to see.

    MediaRefused unless the video can be decoded and its frames are small enough.
    """
    video = await joined(content.descriptor)
    try:
        child = await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", str(_CHILD), str(max_pixels), str(_SECONDS)),
            stdin=video,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
    finally:
        os.close(video)
    try:
        async with asyncio.timeout(_SECONDS):
            said, _ = await child.communicate()
    except TimeoutError:
        raise MediaRefused("takes too long to decode") from None
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()
    numbers = said.split()
    if child.returncode or not numbers or not all(map(bytes.isdigit, numbers)):
        log.info("a video could not be decoded: exit code %s", child.returncode)
        raise MediaRefused(_UNREADABLE)
    pixels = int(numbers[0])
    if not 0 < pixels <= max_pixels:
        raise MediaRefused(f"has frames of {pixels} pixels, from 1 to {max_pixels} are allowed")
    return Film(pixels, int(numbers[-1]))
