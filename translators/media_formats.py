"""Which media are accepted, and what a file really is: told by its first bytes.

One table of formats and one of kinds (contract §6). Names and declared types
only say what a client claims; `sniff` says what the bytes are.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import Enum
from typing import Final, NamedTuple

MIB: Final = 1024 * 1024


class MediaKind(Enum):
    """What a model may take besides text; the values are vLLM's modality names."""

    IMAGE = "image"
    VIDEO = "video"
    AUDIO = "audio"


class MediaFormat(NamedTuple):
    """One accepted file format."""

    name: str
    kind: MediaKind
    suffixes: tuple[str, ...]
    types: tuple[str, ...]
    """Media types under which a data URL may carry it; the first is the proper one."""
    matches: Callable[[bytes], bool]
    """Whether a file that begins with these (at least `HEAD_BYTES`) bytes is one."""


class MediaRule(NamedTuple):
    """One kind of media in a request."""

    kind: MediaKind
    field: str
    """Its `type` in a part, and the key of its value."""
    limit: int
    """Bytes of one item at most."""


RULES: Final = (
    MediaRule(MediaKind.IMAGE, "image_url", 40 * MIB),
    MediaRule(MediaKind.VIDEO, "video_url", 512 * MIB),
    MediaRule(MediaKind.AUDIO, "audio_url", 40 * MIB),
)
MAX_ITEMS: Final = 20
"""Media items of one request."""
MAX_REQUEST_BYTES: Final = 1000 * MIB
"""All media of one request together."""
MAX_URL_LENGTH: Final = 4096
HEAD_BYTES: Final = 32
"""As many first bytes tell every format apart."""

_ASF_HEADER: Final = bytes.fromhex("3026b2758e66cf11a6d900aa0062ce6c")
_MP4_BRANDS: Final = (b"iso", b"mp4", b"mp7", b"avc1", b"M4V", b"dash", b"MSNV", b"3g", b"f4v ")
"""First letters of the brands of ISO media files that hold video: no HEIC, AVIF, M4A or MOV."""


def _jpeg(head: bytes) -> bool:
    return head.startswith(b"\xff\xd8\xff")


def _png(head: bytes) -> bool:
    return head.startswith(b"\x89PNG\r\n\x1a\n")


def _mp4(head: bytes) -> bool:
    return head[4:8] == b"ftyp" and head[8:12].startswith(_MP4_BRANDS)


def _riff(head: bytes, form: bytes) -> bool:
    return head.startswith(b"RIFF") and head[8:12] == form


def _avi(head: bytes) -> bool:
    return _riff(head, b"AVI ")


def _wmv(head: bytes) -> bool:
    return head.startswith(_ASF_HEADER)


def _mp3(head: bytes) -> bool:
    return head.startswith(b"ID3") or mp3_frame(head[:4]) is not None


def _wav(head: bytes) -> bool:
    return _riff(head, b"WAVE")


def _flac(head: bytes) -> bool:
    return head.startswith(b"fLaC")


class Mp3Frame(NamedTuple):
    """The header of one MPEG layer III frame."""

    size: int
    """Bytes, header included."""
    seconds: float
    kind: tuple[int, int, bool]
    """Version, rate and whether it is mono: the same in all frames of a file."""


_MP3_KBITS: Final = {
    1: (0, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320),
    2: (0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160),
}
_MP3_RATES: Final = {3: (44100, 48000, 32000), 2: (22050, 24000, 16000), 0: (11025, 12000, 8000)}


def mp3_frame(header: bytes) -> Mp3Frame | None:
    """The frame that these four bytes open, or None when they open none."""
    if len(header) < 4 or header[0] != 0xFF or header[1] & 0xE6 != 0xE2:
        return None
    version, bitrate, rate = header[1] >> 3 & 3, header[2] >> 4, header[2] >> 2 & 3
    if version == 1 or bitrate in (0, 15) or rate == 3:
        return None
    kbits = _MP3_KBITS[1 if version == 3 else 2][bitrate]
    samples, hertz = (1152 if version == 3 else 576), _MP3_RATES[version][rate]
    size = samples // 8 * kbits * 1000 // hertz + (header[2] >> 1 & 1)
    return Mp3Frame(size, samples / hertz, (version, rate, header[3] >> 6 == 3))


_ANY_HEADER: Final = re.compile(
    b"\xff(?=[\xe2-\xe7\xea-\xef\xf2-\xf7\xfa-\xff][%s])"
    % re.escape(bytes(byte for byte in range(0xF0) if byte >> 2 & 3 != 3))
)
"""Also of other layers, of a free bit rate or without a version: decoders take those, too."""


def mpeg_seconds_at_most(data: bytes) -> float:
    """The most that a decoder makes of frames it has to look for: each header counts."""
    return sum(_header_seconds(data, found.start()) for found in _ANY_HEADER.finditer(data))


def _header_seconds(data: bytes, at: int) -> float:
    version, layer, rate = data[at + 1] >> 3 & 3, data[at + 1] >> 1 & 3, data[at + 2] >> 2 & 3
    samples = 576 if layer == 1 and version != 3 else 1152
    return samples / _MP3_RATES.get(version, _MP3_RATES[0])[rate]


FORMATS: Final = (
    MediaFormat("jpg", MediaKind.IMAGE, (".jpg", ".jpeg"), ("image/jpeg", "image/jpg"), _jpeg),
    MediaFormat("png", MediaKind.IMAGE, (".png",), ("image/png",), _png),
    MediaFormat("mp4", MediaKind.VIDEO, (".mp4",), ("video/mp4",), _mp4),
    MediaFormat("avi", MediaKind.VIDEO, (".avi",), ("video/x-msvideo", "video/avi"), _avi),
    MediaFormat("wmv", MediaKind.VIDEO, (".wmv",), ("video/x-ms-wmv", "video/x-ms-asf"), _wmv),
    MediaFormat("mp3", MediaKind.AUDIO, (".mp3",), ("audio/mpeg", "audio/mp3"), _mp3),
    MediaFormat("wav", MediaKind.AUDIO, (".wav",), ("audio/x-wav", "audio/wav"), _wav),
    MediaFormat("flac", MediaKind.AUDIO, (".flac",), ("audio/flac", "audio/x-flac"), _flac),
)


def sniff(head: bytes) -> MediaFormat | None:
    """The format of a file by its first `HEAD_BYTES` bytes; None when it is none of ours."""
    return next((row for row in FORMATS if row.matches(head)), None)


def rule_of(kind: MediaKind) -> MediaRule:
    """The rule of one kind."""
    return next(row for row in RULES if row.kind is kind)


def formats_of(kind: MediaKind) -> tuple[MediaFormat, ...]:
    """The accepted formats of one kind."""
    return tuple(row for row in FORMATS if row.kind is kind)
