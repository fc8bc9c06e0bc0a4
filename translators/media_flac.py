"""How much sound the frames of a FLAC hold, whatever its header says.

Some decoders stop after as many samples as the header states, some do not.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

_BLOCK: Final = 1 << 16
_LONGEST: Final = 16
"""Bytes of the longest header of a frame."""
_MOST: Final = 1 << 19
"""Headers, and what looks like some, that are looked at."""
_HEADER: Final = re.compile(
    b"\xff(?=[\xf8\xf9][%s][%s])"
    % (
        re.escape(bytes(byte for byte in range(0x10, 0x100) if byte & 0xF != 0xF)),
        re.escape(bytes(byte for byte in range(0, 0xB0, 2) if byte >> 1 & 7 != 3)),
    )
)
_MORE_BYTES: Final = {6: 1, 7: 2}
"""Of the block size, by its code."""
_MORE_RATE_BYTES: Final = {12: 1, 13: 2, 14: 2}


def flac_samples(read: Callable[[int, int], bytes], most: int) -> int | None:
    """Samples in all frames, of one channel; counting stops soon after `most`.

    None when there is too much to look at. `read` is (offset, size) to bytes.
    """
    samples = looked = offset = 0
    while data := read(offset, _BLOCK + _LONGEST):
        for found in _HEADER.finditer(data):
            if found.start() < _BLOCK:
                samples += frame_samples(data[found.start() : found.start() + _LONGEST])
                looked += 1
            if samples > most:
                return samples
            if looked > _MOST:
                return None
        offset += _BLOCK
    return samples


def frame_samples(header: bytes) -> int:
    """Samples of one channel in the frame that these bytes open; 0 when they open none."""
    code, number = header[2] >> 4, _number_bytes(header[4:5])
    size = _MORE_BYTES.get(code, 0)
    end = 4 + number + size + _MORE_RATE_BYTES.get(header[2] & 0xF, 0)
    if not number or len(header) <= end or _crc(header[:end]) != header[end]:
        return 0
    if size:
        return int.from_bytes(header[4 + number : 4 + number + size], "big") + 1
    return 192 if code == 1 else 576 << code - 2 if code < 6 else 256 << code - 8


def _number_bytes(first: bytes) -> int:
    """How many bytes the number of a frame takes, by its first; 0 when it is none."""
    ones = 8 - (~first[0] & 0xFF).bit_length() if first else 1
    return {0: 1, 1: 0, 8: 0}.get(ones, ones)


def _crc(data: bytes) -> int:
    value = 0
    for byte in data:
        value = _CRC[value ^ byte]
    return value


def _crc_of(byte: int) -> int:
    for _ in range(8):
        byte = (byte << 1 ^ 0x07 * (byte >> 7)) & 0xFF
    return byte


_CRC: Final = tuple(map(_crc_of, range(256)))
