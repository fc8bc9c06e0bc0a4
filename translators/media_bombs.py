"""How large a small file becomes: read from its headers, before anything decodes it.

Pure: the file is reached through a `Reader`, so that its size does not matter.
What a header does not say, or says in a way we cannot follow, is refused.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from translators.media_formats import MediaFormat, MediaKind, mp3_frame
from translators.media_urls import MediaRefused

Reader = Callable[[int, int], bytes]
"""(offset, size) to bytes; fewer at the end of the file."""

_JPEG_SIZES: Final = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
"""Markers of the frame header, which holds the size of the image."""
_JPEG_BARE: Final = frozenset((0x01, *range(0xD0, 0xD9)))
"""Markers without a length."""
_MAX_SEGMENTS: Final = 4096
_JPEG_PROGRESSIVE: Final = frozenset((0xC2, 0xC6, 0xCA, 0xCE))
_MAX_SCANS: Final = 32
"""Scans of a progressive JPEG: each makes a decoder go through the whole image."""
_BLOCK: Final = 1 << 16
_MAX_TAIL: Final = 4 * _BLOCK
"""Bytes of tags that may follow the last MP3 frame."""


@dataclass(frozen=True, slots=True)
class DecodedLimits:
    """The most that one medium may become."""

    pixels: int
    seconds: float

    def check(self, file_format: MediaFormat, read: Reader, size: int) -> int:
        """The pixels of an image, 0 for all else.

        MediaRefused when a file of `size` bytes would become more than allowed.
        """
        if file_format.kind is MediaKind.IMAGE:
            width, height = image_size(file_format.name, read)
            if not 0 < width * height <= self.pixels:
                raise MediaRefused(
                    f"has {width} x {height} pixels, from 1 to {self.pixels} are allowed"
                )
            return width * height
        if file_format.kind is MediaKind.AUDIO:
            seconds = audio_seconds(file_format.name, read, size, self.seconds)
            if seconds > self.seconds:
                raise MediaRefused(f"is longer than {self.seconds:g} s")
        return 0


def image_size(name: str, read: Reader) -> tuple[int, int]:
    """Width and height in pixels. MediaRefused when the header is broken."""
    if name == "png":
        head = read(0, 24)
        if head[12:16] != b"IHDR" or len(head) < 24:
            raise MediaRefused("is a broken PNG")
        width, height = struct.unpack(">II", head[16:24])
        return width, height
    return _jpeg_size(read)


def _jpeg_size(read: Reader) -> tuple[int, int]:
    offset = 2
    for _ in range(_MAX_SEGMENTS):
        segment = read(offset, 9)
        if len(segment) < 9 or segment[0] != 0xFF:
            break
        marker = segment[1]
        if marker in _JPEG_SIZES:
            if marker in _JPEG_PROGRESSIVE and _count(read, b"\xff\xda") > _MAX_SCANS:
                raise MediaRefused(f"is a JPEG of more than {_MAX_SCANS} scans")
            height, width = struct.unpack(">HH", segment[5:9])
            return width, height
        if marker == 0xFF:
            offset += 1
        elif marker in _JPEG_BARE:
            offset += 2
        else:
            offset += 2 + int.from_bytes(segment[2:4], "big")
    raise MediaRefused("is a broken JPEG")


def _count(read: Reader, mark: bytes) -> int:
    """Occurrences of a two-byte mark in the whole file."""
    found, offset = 0, 0
    while block := read(offset, _BLOCK):
        found += block.count(mark)
        # One byte is read twice, so that no mark is cut in two.
        offset += max(len(block) - 1, 1)
        if len(block) < _BLOCK:
            break
    return found


def audio_seconds(name: str, read: Reader, size: int, limit: float) -> float:
    """Seconds of sound; counting stops soon after `limit`."""
    match name:
        case "wav":
            return _wav_seconds(read, size)
        case "flac":
            return _flac_seconds(read)
    return _mp3_seconds(read, size, limit)


def _wav_seconds(read: Reader, size: int) -> float:
    """By the format chunk's own byte rate: a low rate makes few bytes long."""
    offset = 12
    for _ in range(_MAX_SEGMENTS):
        head = read(offset, 24)
        if len(head) < 24:
            break
        if head[:4] == b"fmt ":
            rate: int
            byte_rate: int
            rate, byte_rate = struct.unpack("<II", head[12:20])
            block = int.from_bytes(head[20:22], "little")
            if rate * block == 0 or byte_rate == 0:
                break
            return size / min(byte_rate, rate * block)
        length = int.from_bytes(head[4:8], "little")
        offset += 8 + length + length % 2
    raise MediaRefused("is a broken WAV")


def _flac_seconds(read: Reader) -> float:
    info = read(8, 18)
    if len(info) < 18:
        raise MediaRefused("is a broken FLAC")
    packed = int.from_bytes(info[10:18], "big")
    rate, samples = packed >> 44, packed & (1 << 36) - 1
    if rate == 0 or samples == 0:
        raise MediaRefused("is a FLAC that does not say how long it is")
    return samples / rate


def _mp3_seconds(read: Reader, size: int, limit: float) -> float:
    """Frame by frame, since nothing in the file binds a decoder to a stated length."""
    start = _after_id3(read)
    window = read(start, _BLOCK)
    offset, seconds = start + _first_frame(window), 0.0
    while seconds <= limit:
        if not start <= offset <= start + len(window) - 4:
            start, window = offset, read(offset, _BLOCK)
        frame = mp3_frame(window[offset - start : offset - start + 4])
        if frame is None:
            break
        offset, seconds = offset + frame.size, seconds + frame.seconds
    if seconds == 0 or (seconds <= limit and size - offset > _MAX_TAIL):
        raise MediaRefused("is a broken MP3")
    return seconds


def _first_frame(window: bytes) -> int:
    """Where the first frame begins: some writers pad between the tag and it."""
    at = window.find(b"\xff")
    while at >= 0 and mp3_frame(window[at : at + 4]) is None:
        at = window.find(b"\xff", at + 1)
    return max(at, 0)


def _after_id3(read: Reader) -> int:
    head = read(0, 10)
    if not head.startswith(b"ID3") or len(head) < 10:
        return 0
    length = 0
    for byte in head[6:10]:
        length = length << 7 | byte & 0x7F
    return 10 + length + (10 if head[5] & 0x10 else 0)
