"""A small medium of each kind, to find out what a server takes."""

from __future__ import annotations

import base64
import struct
import zlib
from typing import Final

from proxy.media.content import Content, Medium
from translators.media_formats import HEAD_BYTES, MediaKind, sniff

_SIDE: Final = 64
"""Pixels: some models refuse smaller images."""
_RATE: Final = 16_000

# A second of grey, 64 x 64 pixels: MPEG-4 video in MP4, which every decoder takes.
_MP4: Final = (
    "c-nnay-y-R6n_JpU~+{<G!|>ZC0yqh#1La6b`&NyYH_)Xw=lDD!;VXKhE24QQVaeD6FWPjk=BOF%32ExE$puJs>A"
    "md(GgEx_VIr6=6$~b04zuE)?DRFfEbWO&db_D4ggY4AOy-^lG_@9ox?~HMQb8y6&{+ce}&t>xBk7n91QQsWh=hi`"
    "9q+}jyg|<CcYtkKg1-S47WMFqxd60@){V>_eSi!RsXpN11W~zz7Fgv;-9)2<&1xfhIwIdp8w`8z7~)bTq~58@RWY"
    "@c!?YNvM0%18$m|${@y7_12)>xVP>0qLGLDXxiBp^@$8rE9qtLTVaL+laS)_K83i@V%<}G?#RK6OZG5c<UZ#s#S?"
    "RKe_(o~P4Vx=`72zkNpn8i?LRtFMqMs%^9sK<*6j#x*8;!;qx+PGqWJX_yz}CN@W)8tARd;bX)(y@w&~6^Ucr1}h"
    "SMYeYYKN6Vem1{2o14!Kp%07E6v{f#U__(LN=K{d)tSHz5Kd#qrk>bBU8PT#c#&DW+cP>M{Sxx9!5FjR8~)SC<vQ"
    "22_8(G2lIWYcVtf{XU8{NKxMtk$JNka2eF`{*|4F+yXzbm=-g9~C{TU=knN$"
)


def _png() -> bytes:
    rows = zlib.compress((b"\0" + bytes(3 * _SIDE)) * _SIDE)
    header = struct.pack(">IIBBBBB", _SIDE, _SIDE, 8, 2, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", rows), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        for name, data in chunks
    )


def _wav() -> bytes:
    """A second of silence."""
    fmt = struct.pack("<4sIHHIIHH", b"fmt ", 16, 1, 1, _RATE, 2 * _RATE, 2, 16)
    body = b"WAVE" + fmt + struct.pack("<4sI", b"data", 2 * _RATE) + bytes(2 * _RATE)
    return b"RIFF" + struct.pack("<I", len(body)) + body


def _mp4() -> bytes:
    return zlib.decompress(base64.b85decode(_MP4))


def sample(kind: MediaKind) -> Medium:
    """A medium of this kind."""
    data = {MediaKind.IMAGE: _png, MediaKind.VIDEO: _mp4, MediaKind.AUDIO: _wav}[kind]()
    file_format = sniff(data[:HEAD_BYTES])
    assert file_format is not None
    return Medium(0, kind, file_format, Content(len(data), memory=data))
