"""Small files that would become large: refused by what their headers say."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.media_support import SAMPLES, flac, jpeg, mp3, png, wav
from translators.media_bombs import DecodedLimits, Reader, audio_seconds, image_size
from translators.media_formats import FORMATS, HEAD_BYTES, sniff
from translators.media_urls import MediaRefused

TAG = b"ID3\4\0\0\0\0\0\x1e" + bytes(30)
INNER = (
    b"FORM\0\0\0\x2eAIFFCOMM",
    b".snd\0\0\0\x18",
    b"OggS\0\2",
    wav(),
    flac(),
    b"RIFF",
    b"x",
)
"""What a file of another format begins with."""
LIMITS = DecodedLimits(pixels=100, seconds=2.0)


def reader(data: bytes) -> Reader:
    return lambda offset, size: data[offset : offset + size]


def check(data: bytes, limits: DecodedLimits = LIMITS) -> int:
    file_format = sniff(data[:HEAD_BYTES])
    assert file_format is not None
    return limits.check(file_format, reader(data), len(data))


@pytest.mark.parametrize("data", [png(7, 5), jpeg(7, 5), jpeg(7, 5, marker=0xC2)])
def test_the_size_of_an_image_is_read(data: bytes) -> None:
    assert image_size("png" if data.startswith(b"\x89") else "jpg", reader(data)) == (7, 5)
    assert check(data) == 35


@pytest.mark.parametrize("data", [png(10, 10), jpeg(10, 10), *map(SAMPLES.get, ("mp4", "wav"))])
def test_what_fits_passes(data: bytes) -> None:
    assert check(data) in (0, 100)


@pytest.mark.parametrize(
    "data",
    [
        png(1)[:16] + struct.pack(">II", 101, 1) + png(1)[24:],
        png(1)[:16] + struct.pack(">II", 2**31, 2**31) + png(1)[24:],
        png(1)[:16] + struct.pack(">II", 0, 5) + png(1)[24:],
        jpeg(65535, 65535),
        jpeg(11, 10, marker=0xC2),
        jpeg(5, 0),
    ],
)
def test_an_image_of_too_many_pixels_is_refused(data: bytes) -> None:
    with pytest.raises(MediaRefused, match="pixels"):
        check(data)


def test_a_jpegs_frame_may_come_after_many_segments() -> None:
    segment = b"\xff\xe1" + struct.pack(">H", 60000) + bytes(59998)
    data = jpeg(7, 5)
    assert check(data[:2] + segment * 100 + b"\xff\xff" + data[2:]) == 35


def test_a_jpeg_of_endless_scans_is_refused() -> None:
    assert check(jpeg(7, 5, marker=0xC2, scans=32)) == 35
    with pytest.raises(MediaRefused, match="scans"):
        check(jpeg(7, 5, marker=0xC2, scans=33))
    # In one that is not progressive they are as dear, and may be empty.
    assert check(jpeg(7, 5, scans=32)) == 35
    with pytest.raises(MediaRefused, match="scans"):
        check(jpeg(7, 5, scans=33))


def test_scans_are_counted_across_blocks() -> None:
    data = jpeg(7, 5, marker=0xC2, scans=32)
    start = data.index(b"\xff\xda")
    for shift in (65534, 65535, 65536):
        comment = b"\xff\xfe" + struct.pack(">H", shift - start - 2)
        padded = data[:start] + comment.ljust(shift - start, b"\0") + data[start:]
        assert padded[shift : shift + 2] == b"\xff\xda"
        assert check(padded) == 35


@pytest.mark.parametrize(
    "data",
    [
        b"\x89PNG\r\n\x1a\n" + bytes(24),
        png()[:20],
        # Two headers, of which decoders take the last.
        png()[:33] + png(5000, 5000)[8:],
        jpeg()[:20] + jpeg(5000, 5000)[20:-12] + jpeg()[20:],
        # Markers that are skipped in one way here and in another way there.
        b"\xff\xd8" + b"\xff\0\0\6" + b"\xff\xfe" + jpeg()[20:] + jpeg()[2:],
        b"\xff\xd8" + b"\xff\xc8\0\4\0\0" + jpeg()[2:],
        b"\xff\xd8" + b"\xff\xde" + jpeg()[22:33] + jpeg()[2:],
        jpeg()[:2] + jpeg()[2:].replace(b"\xff\xda", b"\xff\xd9"),
        png().replace(b"IDAT", b"iDAT"),
        b"ID3\4\0\0\x80\0\0\x05" + bytes(5) + mp3(4, tag=False),
        wav()[:20] + b"\x55\0" + wav()[22:],
        wav()[:22] + b"\0\0" + wav()[24:],
        jpeg()[:12],
        b"\xff\xd8\xff" + bytes(40),
        b"\xff\xd8" + b"\xff\xfe\0\2" * 5000 + b"\xff\xd9",
        b"RIFF\x40\0\0\0WAVE" + bytes(400),
        b"RIFF\x40\0\0\0WAVEdata\xff\xff\xff\xff" + bytes(400),
        wav(rate=0),
        flac()[:20],
        flac(rate=0),
        flac(samples=0),
        b"ID3\4\0\0\0\0\0\x05" + bytes(400),
        b"ID3\4\0\0\x7f\x7f\x7f\x7f" + bytes(400),
        mp3(2) + bytes(256 * 1024 + 1),
        # What decoders find behind a tag is not sound of this kind.
        *(TAG + inner + mp3(50, tag=False) for inner in INNER),
        TAG + TAG + INNER[0] + mp3(50, tag=False),
        TAG + bytes(100) + INNER[0] + mp3(50, tag=False),
        # A footer that some skip and some do not.
        TAG[:5] + b"\x10" + TAG[6:] + b"fLaC\x81\0\0\x22\0\0" + mp3(50, tag=False),
        b"ID3\5" + TAG[4:] + mp3(50, tag=False),
        TAG * 17 + mp3(50, tag=False),
        TAG + bytes((1 << 16) + 1) + mp3(50, tag=False),
    ],
)
def test_what_cannot_be_followed_is_refused(data: bytes) -> None:
    with pytest.raises(MediaRefused):
        check(data, DecodedLimits(10**9, 10**9))


@pytest.mark.parametrize(
    ("data", "seconds"),
    [
        (wav(1.5), 1.5),
        (flac(12000, 8000), 1.5),
        (mp3(50), 50 * 1152 / 44100),
        (mp3(50, tag=False) + b"TAG" + bytes(125), 50 * 1152 / 44100),
        (mp3(1)[:15] + bytes(100) + mp3(50, tag=False), 50 * 1152 / 44100),
        (TAG * 16 + bytes(65_000) + mp3(50, tag=False), 50 * 1152 / 44100),
        (TAG[:5] + b"\x10" + TAG[6:] + b"3DI" + bytes(7) + mp3(50, tag=False), 50 * 1152 / 44100),
        (mp3(50) + b"APETAGEX" + bytes(200_000) + b"TAG" + bytes(125), 50 * 1152 / 44100),
        (mp3(25) + mp3(25), 50 * 1152 / 44100),
    ],
)
def test_sound_is_measured(data: bytes, seconds: float) -> None:
    file_format = sniff(data[:HEAD_BYTES])
    assert file_format is not None
    found = audio_seconds(file_format.name, reader(data), len(data), 100.0)
    assert found == pytest.approx(seconds, rel=0.01)
    check(data)


@pytest.mark.parametrize("data", [wav(2.5), flac(2**36 - 1), mp3(100), wav(2.5, rate=1000)])
def test_sound_that_is_too_long_is_refused(data: bytes) -> None:
    with pytest.raises(MediaRefused, match="longer than 2 s"):
        check(data)


def test_a_wav_cannot_hide_behind_a_wrong_byte_rate() -> None:
    data = bytearray(wav(2.5))
    data[28:32] = struct.pack("<I", 10**9)
    with pytest.raises(MediaRefused, match="longer"):
        check(bytes(data))


SHORT = b"\xff\xf3\x14\xc4" + bytes(20)
"""A frame of 24 ms in 24 bytes."""
LONG = b"\xff\xfb\xe4\xc4"
"""The header of one of 24 ms in 960 bytes, of another kind."""


@pytest.mark.parametrize(
    "data",
    [
        SHORT * 10 + bytes(8) + SHORT * 90,
        SHORT * 10 + b"TAG" + bytes(125) + SHORT * 90,
        SHORT * 10 + mp3(1) + SHORT * 90,
        # Another kind between them, that would jump over a row of them.
        SHORT + LONG + SHORT * 100,
        # A first frame that decoders do not believe, since none of its kind follows.
        LONG + SHORT * 39 + bytes(20) + SHORT * 41,
        # Of a free bit rate, of layer II, and of a version that is none.
        SHORT * 10 + bytes(8) + (b"\xff\xf3\x04\xc4" + bytes(20)) * 90,
        SHORT * 10 + bytes(8) + (b"\xff\xf5\x14\xc4" + bytes(20)) * 90,
        SHORT * 10 + bytes(8) + (b"\xff\xeb\x14\xc4" + bytes(20)) * 90,
        # The 24900 and 10920 frames that a reviewer found, by the limit of 600 s.
        SHORT * 80 + b"\0" * 8 + SHORT * 10920,
    ],
)
def test_frames_behind_anything_else_count(data: bytes) -> None:
    with pytest.raises(MediaRefused, match=r"longer than 1\.9 s"):
        check(data, DecodedLimits(1, 1.9))


GUID = bytes.fromhex("000000001000800000aa00389b71")


def wav_of(codec: int, channels: int, bits: int, size: int, inner: bytes = b"") -> bytes:
    """A header that says nothing true of its rate of bytes; `inner` is an extended codec."""
    extra = struct.pack("<HHI", 22, bits, 4) + inner if inner else b""
    fmt = struct.pack("<HHIIHH", codec, channels, 8000, 2**32 - 1, 2**16 - 1, bits) + extra
    head = b"RIFF\0\0\0\0WAVEfmt " + struct.pack("<I", len(fmt)) + fmt
    return head + b"data" + bytes(4 + size)


@pytest.mark.parametrize(
    ("codec", "channels", "bits", "size"),
    [
        (1, 1, 16, 40_000),
        (1, 2, 8, 40_000),
        (3, 1, 32, 80_000),
        (3, 1, 64, 160_000),
        (1, 1, 24, 60_000),
        (1, 1, 32, 80_000),
        (7, 1, 8, 20_000),
        # Decoders take a byte for each value, whatever the header says.
        (7, 1, 65535, 20_000),
        (6, 2, 0, 40_000),
        (0x11, 1, 4, 10_000),
        (2, 2, 4, 20_000),
        (0x31, 1, 0, 4_000),
    ],
)
def test_a_wav_is_as_long_as_its_values(codec: int, channels: int, bits: int, size: int) -> None:
    data = wav_of(codec, channels, bits, size)
    found = audio_seconds("wav", reader(data), len(data), 100.0)
    assert found == pytest.approx(2.5, rel=0.05)
    with pytest.raises(MediaRefused, match="longer"):
        check(data)


@pytest.mark.parametrize(
    ("codec", "bits", "size"),
    [(1, 24, 60_000), (3, 32, 80_000), (6, 65535, 20_000), (7, 64, 20_000)],
)
def test_an_extended_wav_is_as_long_as_its_values(codec: int, bits: int, size: int) -> None:
    data = wav_of(0xFFFE, 1, bits, size, struct.pack("<H", codec) + GUID)
    assert audio_seconds("wav", reader(data), len(data), 9.0) == pytest.approx(2.5, rel=0.05)


@pytest.mark.parametrize(
    "data",
    [
        *(wav_of(1, 1, bits, 20_000) for bits in (0, 4, 12, 64, 65535)),
        *(wav_of(3, 1, bits, 20_000) for bits in (0, 16, 24, 65535)),
        *(wav_of(codec, 1, bits, 20_000) for codec in (2, 0x11) for bits in (0, 2, 3, 8)),
        *(wav_of(codec, 1, 8, 20_000) for codec in (0, 0x38, 0x40, 0x45, 0x50, 0x55, 0xFFFF)),
        wav_of(0xFFFE, 1, 16, 20_000),
        wav_of(0xFFFE, 1, 16, 20_000, b"\1\0" + GUID[:-1] + b"\0"),
        wav_of(0xFFFE, 1, 64, 20_000, b"\1\0" + GUID),
        wav_of(0xFFFE, 1, 4, 20_000, b"\2\0" + GUID),
        wav_of(0xFFFE, 1, 16, 20_000, b"\xfe\xff" + GUID),
        wav_of(1, 0, 16, 20_000),
    ],
)
def test_a_wav_that_decoders_read_otherwise_is_refused(data: bytes) -> None:
    with pytest.raises(MediaRefused, match="broken WAV"):
        check(data, DecodedLimits(1, 10**9))


@pytest.mark.parametrize("make", [wav, lambda seconds, rate: flac(int(seconds * rate), rate)])
def test_a_rate_has_a_least(make: Callable[[float, int], bytes]) -> None:
    """At the rate of a model ten minutes of 1 Hz would be many megabytes."""
    check(make(1.5, 1000))
    with pytest.raises(MediaRefused, match="has 999 samples in a second, at least 1000"):
        check(make(1.5, 999))


def test_a_flac_has_one_header() -> None:
    """Decoders take the last."""
    first, other = flac()[:4] + b"\0" + flac()[5:], b"\4\0\0\5hello"
    assert check(first + other + b"\x81\0\0\0") == 0
    for second in (flac(2**36 - 1)[4:], b"\0" + flac(2**36 - 1)[5:]):
        with pytest.raises(MediaRefused, match="broken FLAC"):
            check(first + other + second)
    with pytest.raises(MediaRefused, match="broken FLAC"):
        check(flac()[:4] + b"\4" + flac()[5:])


def test_many_channels_at_a_high_rate_count_as_longer() -> None:
    data = bytearray(flac(655_350 // 8, 655_350))
    assert audio_seconds("flac", reader(bytes(data)), len(data), 2.0) == pytest.approx(0.853, 0.01)
    # Eight channels: three bits before the 36 of the number of samples and the 5 of a sample's.
    data[8 + 12] |= 0b1110
    assert audio_seconds("flac", reader(bytes(data)), len(data), 2.0) == pytest.approx(6.83, 0.01)
    with pytest.raises(MediaRefused, match="longer"):
        check(bytes(data))


def test_counting_mp3_frames_stops_at_the_limit() -> None:
    data, reads = mp3(100_000), []

    def read(offset: int, size: int) -> bytes:
        reads.append(offset)
        return data[offset : offset + size]

    assert audio_seconds("mp3", read, len(data), 2.0) > 2.0
    assert len(reads) < 5


@pytest.mark.parametrize("file_format", FORMATS, ids=lambda row: row.name)
@settings(deadline=None)
@given(data=st.data())
def test_any_bytes_have_an_answer(file_format: object, data: st.DataObject) -> None:
    name = file_format.name  # type: ignore[attr-defined]
    body = bytearray(SAMPLES[name])
    for place in data.draw(st.lists(st.integers(0, min(len(body), 64) - 1), max_size=8)):
        body[place] = data.draw(st.integers(0, 255))
    cut = bytes(body[: data.draw(st.integers(0, len(body)))])
    try:
        assert LIMITS.check(file_format, reader(cut), len(cut)) >= 0  # type: ignore[arg-type]
    except MediaRefused as refused:
        assert str(refused)  # noqa: PT017
