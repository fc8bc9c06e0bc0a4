"""The frames of a FLAC are counted, whatever its header says."""

from __future__ import annotations

import pytest

from tests.media_support import flac
from translators.media_bombs import DecodedLimits
from translators.media_flac import _MOST, flac_samples, frame_samples
from translators.media_formats import HEAD_BYTES, sniff
from translators.media_urls import MediaRefused


def crc(data: bytes) -> int:
    """Bit by bit, as the format's page has it: x^8 + x^2 + x + 1."""
    value = 0
    for byte in data:
        for bit in range(7, -1, -1):
            out = (value >> 7) ^ (byte >> bit & 1)
            value = (value << 1 & 0xFF) ^ (0x07 if out else 0)
    return value


def frame(code: int, rate: int = 4, number: bytes = b"\0", more: bytes = b"") -> bytes:
    """The header of a frame, whole with its checksum, and a little of the rest."""
    header = b"\xff\xf8" + bytes([code << 4 | rate, 0x08]) + number + more
    return header + bytes([crc(header)]) + bytes(12)


@pytest.mark.parametrize(
    ("header", "samples"),
    [
        (frame(1), 192),
        (frame(2), 576),
        (frame(5), 4608),
        (frame(6, more=b"\x0f"), 16),
        (frame(7, more=b"\xff\xff"), 65536),
        (frame(8), 256),
        (frame(12), 4096),
        (frame(15), 32768),
        (frame(12, number=b"\xc2\x80"), 4096),
        (frame(12, number=b"\xfe" + b"\x80" * 6), 4096),
        (frame(7, rate=14, number=b"\xfc" + b"\x80" * 5, more=b"\x0f\xff\1\1"), 4096),
        (frame(12, rate=12, more=b"\x30"), 4096),
        # No number, a wrong checksum, and an end that comes too soon.
        (frame(12, number=b"\x80"), 0),
        (frame(12, number=b"\xff"), 0),
        (frame(12)[:5] + bytes([frame(12)[5] ^ 1]), 0),
        (frame(12)[:5], 0),
        (frame(12)[:4], 0),
    ],
)
def test_a_frame_says_how_long_it_is(header: bytes, samples: int) -> None:
    assert frame_samples(header) == samples


def counted(data: bytes, most: int = 10**9) -> int | None:
    return flac_samples(lambda offset, size: data[offset : offset + size], most)


def test_all_frames_count_wherever_they_stand() -> None:
    assert counted(flac() + frame(12) * 3 + bytes(7) + frame(12)) == 4 * 4096
    assert counted(b"\xff\xf8" * 100 + b"\xff\xfb\xc4\x08\0\0" * 100) == 0
    for before in range(65536 - 20, 65536 + 2):
        assert counted(bytes(before) + frame(12)) == 4096
    assert counted(frame(12) * 10_000, 100_000) == 25 * 4096


def test_what_would_take_too_long_is_not_counted() -> None:
    assert counted(b"\xff\xf8\xc4\x08" * (_MOST + 1)) is None


def check(data: bytes) -> int:
    file_format = sniff(data[:HEAD_BYTES])
    assert file_format is not None
    limits = DecodedLimits(1, 2.0)
    return limits.check(file_format, lambda at, size: data[at : at + size], len(data))


def test_a_flac_is_as_long_as_its_frames() -> None:
    """The header says 1000 samples, at 8000 a second."""
    assert check(flac(1000) + frame(12) * 3) == 0
    with pytest.raises(MediaRefused, match="longer than 2 s"):
        check(flac(1000) + frame(12) * 4)
    with pytest.raises(MediaRefused, match="broken FLAC"):
        check(flac(1000) + b"\xff\xf8\xc4\x08" * (_MOST + 1))
