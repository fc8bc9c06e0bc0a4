"""Formats by content, whatever the name says."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.media_support import FIELDS, SAMPLES, mp3, mp4
from translators.media_formats import (
    FORMATS,
    HEAD_BYTES,
    MediaKind,
    Mp3Frame,
    formats_of,
    mp3_frame,
    rule_of,
    sniff,
)


@pytest.mark.parametrize("name", SAMPLES)
def test_each_format_is_told_by_its_first_bytes(name: str) -> None:
    found = sniff(SAMPLES[name][:HEAD_BYTES])
    assert found is not None
    assert found.name == name
    assert rule_of(found.kind).field == FIELDS[name]


@pytest.mark.parametrize(
    "head",
    [
        b"",
        b"\x89PNG",
        b"GIF89a" + bytes(26),
        b"RIFF\0\0\0\0WEBP" + bytes(20),
        b"BM" + bytes(30),
        b"<svg xmlns='http://www.w3.org/2000/svg'>",
        b"%PDF-1.7" + bytes(24),
        b"PK\3\4" + bytes(28),
        b"\x1a\x45\xdf\xa3" + bytes(28),
        b"OggS" + bytes(28),
        b"#EXTM3U\n#EXT-X-VERSION:3\nfile:///etc",
        b"\xff\xf1\x50\x80" + bytes(28),
        b"\xff\xff\xff\xff" + bytes(28),
        b"\x00\x00\x01\x00" + bytes(28),
        b"II*\0" + bytes(28),
        b"\x93NUMPY" + bytes(26),
        b"\0asm" + bytes(28),
    ],
)
def test_nothing_else_is_taken_for_one(head: bytes) -> None:
    assert sniff(head) is None


@pytest.mark.parametrize("brand", [b"heic", b"mif1", b"avif", b"qt  ", b"M4A ", b"jp2 ", b"crx "])
def test_iso_files_that_are_no_mp4_video_are_told_apart(brand: bytes) -> None:
    assert sniff(mp4(brand)[:HEAD_BYTES]) is None


@pytest.mark.parametrize("brand", [b"isom", b"iso6", b"mp42", b"mp41", b"avc1", b"M4V ", b"dash"])
def test_the_brands_of_mp4_are_known(brand: bytes) -> None:
    found = sniff(mp4(brand)[:HEAD_BYTES])
    assert found is not None
    assert found.name == "mp4"


def test_an_mp3_needs_no_tag() -> None:
    found = sniff(mp3(tag=False)[:HEAD_BYTES])
    assert found is not None
    assert found.name == "mp3"


@pytest.mark.parametrize(
    ("header", "frame"),
    [
        ("fffb9000", Mp3Frame(417, 1152 / 44100, (3, 0, False))),
        ("fffb92c0", Mp3Frame(418, 1152 / 44100, (3, 0, True))),
        ("fff34000", Mp3Frame(104, 576 / 22050, (2, 0, False))),
        ("ffe38800", Mp3Frame(576, 576 / 8000, (0, 2, False))),
        ("fffb0000", None),
        ("fffbf000", None),
        ("fffb9c00", None),
        ("ffeb9000", None),
        ("fffd9000", None),
        ("feff9000", None),
        ("fffb90", None),
    ],
)
def test_mp3_frames_are_measured(header: str, frame: Mp3Frame | None) -> None:
    found = mp3_frame(bytes.fromhex(header))
    assert (found is None) == (frame is None)
    if found is not None and frame is not None:
        assert found.size == frame.size
        assert found.kind == frame.kind
        assert found.seconds == pytest.approx(frame.seconds)


@settings(deadline=None)
@given(st.binary(max_size=HEAD_BYTES))
def test_any_bytes_have_an_answer(head: bytes) -> None:
    assert sniff(head) is None or sniff(head) in FORMATS


def test_the_table_is_the_contracts() -> None:
    names = {kind: [row.name for row in formats_of(kind)] for kind in MediaKind}
    assert names == {
        MediaKind.IMAGE: ["jpg", "png"],
        MediaKind.VIDEO: ["mp4", "avi", "wmv"],
        MediaKind.AUDIO: ["mp3", "wav", "flac"],
    }
    suffixes = [name for row in formats_of(MediaKind.IMAGE) for name in row.suffixes]
    assert suffixes == [".jpg", ".jpeg", ".png"]
