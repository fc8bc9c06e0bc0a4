"""Reading from a media host without holding up the event loop, whatever the host sends.

What comes in at once may be a quarter of a megabyte, and more before the loop gets to
anything else. As the bytes of a picture that is nothing; as informational answers, or as
chunks of one byte, it is a second of parsing. So nothing is parsed as it comes: all
connections together parse for a moment in each turn of the loop, a slice at a time, and
a host that sends mostly what is not the medium is refused.
"""

from __future__ import annotations

import asyncio
import asyncio.trsock
import fcntl
import re
import socket
import struct
import sys
import termios
import time
from collections import deque
from contextlib import suppress
from functools import partial
from typing import Any, Final

import aiohttp
from aiohttp.client_proto import ResponseHandler
from aiohttp.http import RawResponseMessage
from aiohttp.streams import StreamReader

from translators.media_formats import MIB

_MOMENT: Final = 0.001
"""Seconds that all connections together parse in one turn of the loop."""
_SLICE: Final = 4096
"""Bytes that are parsed at a time: the dearest ones take two milliseconds."""
_LARGE_SLICE: Final = 64 * 1024
"""The same for a host that has sent little framing so far: ten milliseconds, but once."""
_BEHIND: Final = MIB // 2
"""Bytes that one connection may have unparsed before it is read no further."""
_REST: Final = MIB
"""Bytes that uvloop may have read ahead of a connection with TLS that is paused, and more."""
_BEHIND_TLS: Final = 8 * MIB
"""Bytes that such a connection may have unparsed while it is not known what is to come."""
_ANSWERS: Final = 8
"""Answers to one request: informational ones, of which hosts send one or two, and the last."""
_FRAMING: Final = 32 * 1024
"""Bytes of an answer that may be something else than its body: its head, for the most part."""
_FRAMING_SHARE: Final = 16
"""To these comes one for so many of the body: chunks of a hundred bytes pass."""
_RECORDS: Final = 128 * 1024
"""Bytes of TLS that may be something else than what it carries: certificates, at first."""
_RECORDS_SHARE: Final = 8
"""To these comes one for so many that are carried: records of two hundred bytes pass."""
_HEAD_END: Final = re.compile(rb"[^\r\n]\r?\n\r?\n")
_HEAD_END_SIZE: Final = 5
"""Its bytes at most."""
_INFO_SIZE: Final = 136
_INFO_RECEIVED: Final = 128
_RECEIVED: Final = struct.Struct("=Q")
"""Linux's `tcp_info` as far as it is needed, and in it how many bytes have come in."""


class MostlyFraming(aiohttp.ClientPayloadError):
    """A host sends many headers, answers or tiny chunks, and hardly any content."""


class Pace:
    """Takes the connections in turn, for a moment in each turn of the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: deque[PacedHandler] = deque()
        self._scheduled = False

    def enlist(self, handler: PacedHandler) -> None:
        """Let it parse, soon, what it holds."""
        if not handler.enlisted:
            handler.enlisted = True
            self._waiting.append(handler)
            self._schedule()

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._run)

    def _run(self) -> None:
        end = time.perf_counter() + _MOMENT
        try:
            while self._waiting and time.perf_counter() < end:
                self._feed(self._waiting.popleft())
        finally:
            self._scheduled = False
            if self._waiting:
                self._schedule()

    def _feed(self, handler: PacedHandler) -> None:
        more = False
        try:
            more = handler.feed()
        finally:
            handler.enlisted = more
            if more:
                self._waiting.append(handler)


class PacedHandler(ResponseHandler):
    """aiohttp's protocol of a client's connection; what comes in waits for its turn.

    Serves one request: the connection is not used again.
    """

    def __init__(self, pace: Pace, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self.enlisted = False
        """Whether it is in its pace's queue, which alone changes this."""
        self._pace = pace
        self._unparsed: deque[bytes] = deque()
        self._behind = 0
        self._tls = False
        self._carried = 0
        """Bytes that came out of TLS."""
        self._refused = False
        self._cut = 0
        """Bytes of the first piece that are parsed already."""
        self._seen = b""
        """What was parsed last, where a head may have begun to end."""
        self._plain = 0
        """Bytes of the body that come without framing."""
        self._parsed = 0
        self._answers = 0
        self._body: StreamReader | None = None
        self._lost: tuple[BaseException | None] | None = None
        """With what the connection was lost while there was something left to parse."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._tls = transport.get_extra_info("sslcontext") is not None

    def data_received(self, data: bytes) -> None:
        if not data:
            # aiohttp's own call, to go on with what its parser has kept.
            self._parse(data)
        elif self._tls and self._is_mostly_records(len(data)):
            self._refuse()
        elif self._held or len(data) > self._plain - self._body_size():
            self._keep(data)
        else:
            self._parse(data)

    def _is_mostly_records(self, size: int) -> bool:
        """Whether TLS takes much more than it carries: uvloop unpacks all that there is at once."""
        self._carried += size
        if self.transport is None:
            return False
        sock = self.transport.get_extra_info("socket")
        allowed = self._carried + _RECORDS + self._carried // _RECORDS_SHARE
        received = _received(sock)
        return received > allowed and received - _unread(sock) > allowed

    @property
    def _held(self) -> bool:
        """Whether what comes has to wait: for what came before, or for who reads."""
        return bool(self._unparsed) or self._reading_paused

    def _keep(self, data: bytes) -> None:
        self._unparsed.append(data)
        self._behind += len(data)
        self._steer()
        self._pace.enlist(self)

    def _steer(self) -> None:
        """Have the connection read or not, by what is left to parse."""
        if self.transport is None:
            return
        # It may be closing.
        with suppress(RuntimeError):
            if self._behind >= _BEHIND and not self._may_end():
                self.transport.pause_reading()
            else:
                self.transport.resume_reading()

    def _may_end(self) -> bool:
        """Whether the end may be there already, and must be read.

        Of a connection with TLS that is paused when its host closes it, uvloop loses
        what came last.
        """
        if not self._tls:
            return False
        if 0 < self._plain < sys.maxsize:
            return self._plain - self._body_size() - self._behind < _REST
        return self._behind < _BEHIND_TLS

    def feed(self) -> bool:
        """Parse a slice; whether there is more to parse now."""
        if self.transport is None or self._ended:
            # Nobody reads on.
            self._forget()
        elif self._may_parse():
            self._parse_slice()
        if not self._held or self.transport is None:
            self._tell_lost()
        return self._may_parse()

    @property
    def _ended(self) -> bool:
        return self._refused or (self._body is not None and self._body.is_eof())

    def _may_parse(self) -> bool:
        return bool(self._unparsed) and self._parser is not None and not self._reading_paused

    def _parse_slice(self) -> None:
        data = self._slice()
        self._behind -= len(data)
        self._parse(data)
        if not self._judge():
            self._steer()

    def _parse(self, data: bytes) -> None:
        self._parsed += len(data)
        super().data_received(data)
        error = self.exception()
        if error is not None and self._body is not None and not self._body.is_eof():
            # aiohttp tells an error of its parser only to who waits for a head.
            self._body.set_exception(aiohttp.ClientPayloadError(), error)

    def _judge(self) -> bool:
        """Refuse a host that sends mostly framing; whether it was refused."""
        if self._ended or not self._is_mostly_framing():
            return False
        self._refuse()
        return True

    def _is_mostly_framing(self) -> bool:
        if self._reading_paused:
            # The parser has stopped within a slice, and what it has not parsed may all be body.
            return False
        body = self._body_size()
        allowed = _FRAMING + body // _FRAMING_SHARE
        return self._answers > _ANSWERS or self._parsed - body > allowed

    def _body_size(self) -> int:
        return 0 if self._body is None else self._body.total_bytes

    def _slice(self) -> bytes:
        """What is parsed next."""
        first, size = self._unparsed[0], self._next_size()
        if self._cut + size >= len(first):
            self._unparsed.popleft()
            cut, self._cut = self._cut, 0
            return first[cut:]
        self._cut += size
        return first[self._cut - size : self._cut]

    def _next_size(self) -> int:
        """The rest of a head or of a plain body, or little of all else."""
        body = self._body_size()
        if self._body is None:
            return self._head_size()
        if self._plain:
            return self._plain - body
        trusted = body > (self._parsed - body) * _FRAMING_SHARE
        return _LARGE_SLICE if trusted else _SLICE

    def _head_size(self) -> int:
        """To the end of a head and no further: only then it is known what belongs to the body.

        What follows the body would be an error of the parser, and lose what came with it.
        """
        seen = self._seen + self._unparsed[0][self._cut : self._cut + _SLICE]
        end = _HEAD_END.search(seen)
        size = (end.end() if end else len(seen)) - len(self._seen)
        self._seen = b"" if end else seen[-_HEAD_END_SIZE + 1 :]
        return size

    def _refuse(self) -> None:
        self._refused = True
        refusal = MostlyFraming()
        self.set_exception(refusal)
        if self._body is not None:
            self._body.set_exception(refusal)
        # Else the end of the connection would be told in place of its reason.
        self._payload = self._parser = None
        self._forget()
        if self.transport is not None:
            self.transport.abort()

    def _forget(self) -> None:
        self._unparsed.clear()
        self._behind = self._cut = 0

    def feed_data(self, data: tuple[RawResponseMessage, StreamReader], size: int = 0) -> None:
        message, body = data
        self._answers += 1
        if message.code >= 200 and self._body is None:
            self._body = body
            if not message.chunked:
                self._plain = int(message.headers.get("Content-Length", sys.maxsize))
        super().feed_data(data, size)

    def set_response_params(self, **options: Any) -> None:
        super().set_response_params(**options)
        # A host may have spoken before it was asked.
        self._pace.enlist(self)

    def pause_reading(self) -> None:
        super().pause_reading()
        # Not as soon as aiohttp would like.
        self._steer()

    def resume_reading(self, resume_parser: bool = True) -> None:
        # aiohttp calls it for every piece that is taken, paused or not.
        if self._reading_paused:
            super().resume_reading(resume_parser)
            if not self._judge():
                self._steer()
                self._pace.enlist(self)

    def close(self) -> None:
        # An orderly end of TLS would have uvloop unpack what the host still sends, for long.
        self.abort()

    def abort(self) -> None:
        super().abort()
        self._pace.enlist(self)

    def connection_lost(self, exc: BaseException | None) -> None:
        self._lost = (exc,)
        self._pace.enlist(self)

    def _tell_lost(self) -> None:
        if self._lost is not None:
            (exc,), self._lost = self._lost, None
            super().connection_lost(exc)


def _received(sock: asyncio.trsock.TransportSocket) -> int:
    """Bytes that have come in on a connection; 0 where the system does not tell."""
    try:
        info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_SIZE)
    except OSError:
        return 0
    return _RECEIVED.unpack_from(info, _INFO_RECEIVED)[0] if len(info) == _INFO_SIZE else 0


def _unread(sock: asyncio.trsock.TransportSocket) -> int:
    """Those of them that are still with the system."""
    try:
        size = fcntl.ioctl(sock.fileno(), termios.FIONREAD, bytes(4))
    except OSError:
        return 0
    return int.from_bytes(size, sys.byteorder)


class PacedConnector(aiohttp.TCPConnector):
    """Makes connections that keep to one pace."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._factory: Any = partial(PacedHandler, Pace(self._loop), self._loop)
