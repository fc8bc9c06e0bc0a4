"""How large a small file becomes: read from its headers, before anything decodes it.

Pure: the file is reached through a `Reader`, so that its size does not matter.
What a header does not say, or says in a way we cannot follow, is refused.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from translators.media_flac import flac_samples
from translators.media_formats import MediaFormat, MediaKind, mp3_frame, mpeg_seconds_at_most
from translators.media_urls import MediaRefused

Reader = Callable[[int, int], bytes]
"""(offset, size) to bytes; fewer at the end of the file."""

FULL_IMAGES: Final = 4
"""All images of a request, or all frames of a video that are taken, may have as many pixels as
this many images of the largest size."""
_JPEG_SIZES: Final = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
"""Markers of the frame header, which holds the size of the image."""
_JPEG_OTHERS: Final = frozenset((0xC4, 0xCC, 0xDB, 0xDC, 0xDD, *range(0xE0, 0xF0), 0xFE))
"""Markers of what may stand beside it. Decoders do not agree on how long all others are."""
_JPEG_SCAN: Final = 0xDA
_MAX_SEGMENTS: Final = 4096
_MAX_SCANS: Final = 32
"""Scans of a JPEG: each makes a decoder go through the whole image, empty or not."""
_VALUES_PER_SECOND: Final = 2 * 48_000
"""Of sound, all channels together: with more of them, a second counts as several."""
MIN_HERTZ: Final = 1000
"""Samples in a second: sound of fewer becomes many times larger at the rate of a model."""
_WAV_BITS: Final = {
    0x0001: (8, 16, 24, 32),
    0x0003: (32, 64),
    0x0002: (4,),
    0x0011: (4,),
}
"""Codecs whose values take as many bits as the header says, and how many that may be."""
_WAV_FIXED: Final = {0x0006: 8.0, 0x0007: 8.0, 0x0031: 1.6}
"""Codecs of which decoders do not read that number, and the bits of a value, or a little fewer."""
_WAV_EXTENSIBLE: Final = 0xFFFE
"""The codec stands at the beginning of a GUID."""
_WAV_GUID: Final = bytes.fromhex("000000001000800000aa00389b71")
_WAV_EXTENDED: Final = frozenset((0x0001, 0x0003, 0x0006, 0x0007))
_BLOCK: Final = 1 << 16
_MAX_TAIL: Final = 4 * _BLOCK
"""Bytes of tags that may follow the last MP3 frame."""
_MAX_TAGS: Final = 16
"""ID3 tags before the first."""
_ID3_VERSIONS: Final = frozenset((2, 3, 4))


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
    return _png_size(read) if name == "png" else _jpeg_size(read)


def _png_size(read: Reader) -> tuple[int, int]:
    """By the one header: of two, decoders take the last."""
    head = read(0, 24)
    if head[12:16] != b"IHDR" or len(head) < 24:
        raise MediaRefused("is a broken PNG")
    width, height = struct.unpack(">II", head[16:24])
    offset = 8
    for index in range(_MAX_SEGMENTS):
        chunk = read(offset, 8)
        if len(chunk) < 8 or (chunk[4:] == b"IHDR" and index):
            break
        if chunk[4:] == b"IDAT":
            return width, height
        offset += 12 + int.from_bytes(chunk[:4], "big")
    raise MediaRefused("is a broken PNG")


def _jpeg_size(read: Reader) -> tuple[int, int]:
    """By the one frame header before the first scan, whatever else stands there."""
    offset, size = 2, None
    for _ in range(_MAX_SEGMENTS):
        segment = read(offset, 9)
        if len(segment) < 2 or segment[0] != 0xFF:
            break
        marker = segment[1]
        if marker == 0xFF:
            offset += 1
            continue
        if marker == _JPEG_SCAN and size is not None:
            if _count(read, b"\xff\xda") > _MAX_SCANS:
                raise MediaRefused(f"is a JPEG of more than {_MAX_SCANS} scans")
            return size
        if marker in _JPEG_SIZES and size is None and len(segment) == 9:
            height, width = struct.unpack(">HH", segment[5:9])
            size = (width, height)
        elif marker not in _JPEG_OTHERS:
            break
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
            return _flac_seconds(read, limit)
    return _mp3_seconds(read, size, limit)


def _wav_seconds(read: Reader, size: int) -> float:
    """By what a value takes, since decoders do not go by the stated rate of bytes either."""
    offset = 12
    for _ in range(_MAX_SEGMENTS):
        head = read(offset, 48)
        if len(head) < 24:
            break
        if head[:4] == b"fmt ":
            bits = _wav_bits(head)
            channels, rate = struct.unpack("<HI", head[10:16])
            if not bits or not channels:
                break
            return _seconds(int(size * 8 / bits), channels, rate)
        length = int.from_bytes(head[4:8], "little")
        offset += 8 + length + length % 2
    raise MediaRefused("is a broken WAV, or one of a codec that is not accepted")


def _wav_bits(head: bytes) -> float:
    """What a value takes by this format chunk; 0 when decoders might read it otherwise."""
    codec, bits = int.from_bytes(head[8:10], "little"), int.from_bytes(head[22:24], "little")
    if codec == _WAV_EXTENSIBLE:
        codec = int.from_bytes(head[32:34], "little")
        if head[34:] != _WAV_GUID or codec not in _WAV_EXTENDED:
            return 0
    return bits if bits in _WAV_BITS.get(codec, ()) else _WAV_FIXED.get(codec, 0)


def _seconds(values: int, channels: int, rate: int) -> float:
    if rate < MIN_HERTZ:
        raise MediaRefused(f"has {rate} samples in a second, at least {MIN_HERTZ} are needed")
    return max(values / (channels * rate), values / _VALUES_PER_SECOND)


def _flac_seconds(read: Reader, limit: float) -> float:
    """By the one header: of two, decoders take the last."""
    info = read(8, 18)
    if len(info) < 18 or read(4, 1)[0] & 0x7F or not _is_only_header(read):
        raise MediaRefused("is a broken FLAC")
    packed = int.from_bytes(info[10:18], "big")
    rate, channels, samples = packed >> 44, (packed >> 41 & 7) + 1, packed & (1 << 36) - 1
    if samples == 0:
        raise MediaRefused("is a FLAC that does not say how long it is")
    stated = _seconds(samples * channels, channels, rate)
    if stated > limit:
        return stated
    # Not all decoders go by what is stated.
    found = flac_samples(read, int(limit * rate))
    if found is None:
        raise MediaRefused("is a broken FLAC")
    return max(stated, _seconds(found * channels, channels, rate))


def _is_only_header(read: Reader) -> bool:
    offset, block = 4, read(4, 4)
    for _ in range(_MAX_SEGMENTS):
        if len(block) < 4 or block[0] & 0x80:
            return True
        offset += 4 + int.from_bytes(block[1:], "big")
        block = read(offset, 4)
        if block[:1] in (b"\0", b"\x80"):
            return False
    return False


def _mp3_seconds(read: Reader, size: int, limit: float) -> float:
    """Frame by frame, since nothing in the file binds a decoder to a stated length."""
    last, end, seconds = _frames(read, _first_frame(read), limit)
    if seconds == 0 or (seconds <= limit and size - end > _MAX_TAIL):
        raise MediaRefused("is a broken MP3")
    if seconds <= limit:
        seconds += mpeg_seconds_at_most(read(last + 1, size - last - 1))
    return seconds


def _frames(read: Reader, start: int, limit: float) -> tuple[int, int, float]:
    """Where the last of a row of frames begins and ends, and the seconds of all.

    The row ends at a frame of another kind, too: decoders do not go on from there as
    they came, and may even look for frames within the first.
    """
    offset, last, seconds, kind = start, start, 0.0, None
    window = read(start, _BLOCK)
    while seconds <= limit:
        if not start <= offset <= start + len(window) - 4:
            start, window = offset, read(offset, _BLOCK)
        frame = mp3_frame(window[offset - start : offset - start + 4])
        if frame is None or kind not in (None, frame.kind):
            break
        last, kind = offset, frame.kind
        offset, seconds = offset + frame.size, seconds + frame.seconds
    return last, offset, seconds


def _first_frame(read: Reader) -> int:
    """Where the first frame has to begin: some writers pad with zeros between the tags and it."""
    start = _after_tags(read)
    window = read(start, _BLOCK)
    return start + len(window) - len(window.lstrip(b"\0"))


def _after_tags(read: Reader) -> int:
    offset = 0
    for _ in range(_MAX_TAGS + 1):
        head = read(offset, 10)
        if not head.startswith(b"ID3"):
            return offset
        # Of another version, or with another length, it is no tag to a decoder.
        if len(head) < 10 or head[3] not in _ID3_VERSIONS or max(head[6:10]) > 0x7F:
            break
        offset += 10 + sum(byte << 21 - 7 * place for place, byte in enumerate(head[6:10]))
        if head[5] & 0x10:
            # Decoders that know no footers must not find something else in its place.
            if read(offset, 3) != b"3DI":
                break
            offset += 10
    raise MediaRefused("is a broken MP3")
