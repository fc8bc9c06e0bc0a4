"""What two servers could read differently is refused, and the connection ends with it.

Each case is followed at once by a second request. A case that is refused must be
the end: 400, a closed connection, nothing given to the engine, no second answer.
A case that is accepted must be one request and no more.
"""

from __future__ import annotations

import asyncio
from typing import Final

import pytest

from tests.support import (
    STREAM_PATH,
    RunningGateway,
    connection,
    get_bytes,
    read_response,
    serving,
)

PATH: Final = STREAM_PATH.encode()
BODY: Final = b'{"text_input":"a","parameters":{"max_new_tokens":1}}'
LENGTH: Final = b"Content-Length: %d" % len(BODY)
SIZE: Final = b"%x" % len(BODY)
CHUNKED: Final = b"Transfer-Encoding: chunked"
CHUNKS: Final = SIZE + b"\r\n" + BODY + b"\r\n0\r\n\r\n"
SECOND: Final = get_bytes("/v2/health/live")


def head(
    *headers: bytes, line: bytes = b"POST " + PATH + b" HTTP/1.1", end: bytes = b"\r\n"
) -> bytes:
    return end.join([line, b"Host: x", *headers, b"", b""])


def sized(*headers: bytes) -> bytes:
    """A request whose body is its Content-Length long, with more headers."""
    return head(*headers, LENGTH) + BODY


def chunked(*headers: bytes, body: bytes = CHUNKS) -> bytes:
    return head(*headers or (CHUNKED,)) + body


def line(text: bytes) -> bytes:
    """A request with another first line."""
    return head(LENGTH, line=text) + BODY


REFUSED: Final = {
    "length and chunks": head(LENGTH, CHUNKED) + CHUNKS,
    "chunks and length": head(CHUNKED, b"Content-Length: 4") + CHUNKS,
    "two lengths that differ": head(LENGTH, b"Content-Length: 5") + BODY,
    "two lengths that agree": head(LENGTH, LENGTH) + BODY,
    "a list of lengths": head(LENGTH + b", " + LENGTH[16:]) + BODY,
    "a length with a sign": head(b"Content-Length: +52") + BODY,
    "a negative length": head(b"Content-Length: -1") + BODY,
    "a hexadecimal length": head(b"Content-Length: 0x34") + BODY,
    "a length with a point": head(b"Content-Length: 52.0") + BODY,
    "no length in its header": head(b"Content-Length:") + BODY,
    "a word for a length": head(b"Content-Length: ten") + BODY,
    "a length beyond 64 bits": head(b"Content-Length: 18446744073709551668") + BODY,
    "a space in the length": head(b"Content-Length: 5 2") + BODY,
    "an underscore in the length": head(b"Content-Length: 5_2") + BODY,
    "other digits in the length": head("Content-Length: ٥٢".encode()) + BODY,
    "identity and length": head(b"Transfer-Encoding: identity", LENGTH) + BODY,
    "an unknown coding": chunked(b"Transfer-Encoding: xchunked"),
    "a coding before chunked": chunked(b"Transfer-Encoding: gzip, chunked"),
    "a coding after chunked": chunked(b"Transfer-Encoding: chunked, identity"),
    "chunked twice in one header": chunked(b"Transfer-Encoding: chunked, chunked"),
    "chunked in two headers": chunked(CHUNKED, CHUNKED),
    "chunked and identity in two headers": chunked(CHUNKED, b"Transfer-Encoding: identity"),
    "chunked in quotes": chunked(b'Transfer-Encoding: "chunked"'),
    "chunked after a vertical tab": chunked(b"Transfer-Encoding: \x0bchunked"),
    "chunked after a no-break space": chunked("Transfer-Encoding:\u00a0chunked".encode()),
    "a space before the colon": chunked(b"Transfer-Encoding : chunked"),
    "a tab before the colon": chunked(b"Transfer-Encoding\t: chunked"),
    "chunked on a folded line": chunked(b"Transfer-Encoding:\r\n chunked"),
    "chunked in HTTP/1.0": head(CHUNKED, line=b"POST " + PATH + b" HTTP/1.0") + CHUNKS,
    "a folded header": sized(b"X-A: b\r\n c"),
    "a header after a space": sized(b" X-A: b"),
    "a NUL in a name": sized(b"X\x00A: b"),
    "a NUL in a value": sized(b"X-A: b\x00c"),
    "a bare CR in a value": sized(b"X-A: b\rc"),
    "a bare LF in a value": sized(b"X-A: b\nTransfer-Encoding: chunked"),
    "lines that end with LF": head(LENGTH, end=b"\n") + BODY,
    "lines that end with CR": head(LENGTH, end=b"\r") + BODY,
    "a header without a colon": sized(b"X-A"),
    "a header without a name": sized(b": a"),
    "a bracket in a name": sized(b"X(A): b"),
    "a space in a name": sized(b"Content Length: 5"),
    "a letter beyond ASCII in a name": sized(b"Transfer-Encod\xefng: chunked"),
    "two hosts": sized(b"Host: y"),
    "no host": sized().replace(b"Host: x\r\n", b""),
    "HTTP/1.2": line(b"POST " + PATH + b" HTTP/1.2"),
    "HTTP/2.0": line(b"POST " + PATH + b" HTTP/2.0"),
    "HTTP/2's preface": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "HTTP/0.9": b"GET /v2/health/live\r\n\r\n",
    "no minor version": line(b"POST " + PATH + b" HTTP/1"),
    "http in small letters": line(b"POST " + PATH + b" http/1.1"),
    "a space in the method": line(b"PO ST " + PATH + b" HTTP/1.1"),
    "a control in the method": line(b"PO\x01ST " + PATH + b" HTTP/1.1"),
    "tabs in the first line": line(b"POST\t" + PATH + b"\tHTTP/1.1"),
    "a space in the path": line(b"POST " + PATH + b" x HTTP/1.1"),
    "a NUL in the path": line(b"POST " + PATH + b"\x00 HTTP/1.1"),
    "a control in the path": line(b"POST " + PATH + b"\x7f HTTP/1.1"),
    "a chunk size with 0x": chunked(body=b"0x" + CHUNKS),
    "a chunk size with a sign": chunked(body=b"+" + CHUNKS),
    "a negative chunk size": chunked(body=b"-1\r\n" + BODY + b"\r\n0\r\n\r\n"),
    "a space before a chunk size": chunked(body=b" " + CHUNKS),
    "a space after a chunk size": chunked(body=SIZE + b" \r\n" + BODY + b"\r\n0\r\n\r\n"),
    "a chunk size beyond 64 bits": chunked(body=b"1" + b"0" * 14 + CHUNKS),
    "no chunk size": chunked(body=b"\r\n" + BODY + b"\r\n0\r\n\r\n"),
    "an underscore in a chunk size": chunked(body=b"3_4\r\n" + BODY + b"\r\n0\r\n\r\n"),
    "chunk lines that end with LF": chunked(body=SIZE + b"\n" + BODY + b"\n0\n\n"),
    "a LF in a chunk extension": chunked(body=SIZE + b";a=b\n" + BODY + b"\r\n0\r\n\r\n"),
    "a CRLF in a chunk extension": chunked(body=SIZE + b';a="\r\n"\r\n' + BODY + b"\r\n0\r\n\r\n"),
    "a chunk without its end": chunked(body=SIZE + b"\r\n" + BODY + b"0\r\n\r\n"),
    "a chunk longer than it says": chunked(body=SIZE + b"\r\n" + BODY + b"xx\r\n0\r\n\r\n"),
    "a length in the trailers": chunked(body=CHUNKS[:-2] + b"Content-Length: 5\r\n\r\n"),
    "a trailer without a colon": chunked(body=CHUNKS[:-2] + b"X T\r\n\r\n"),
}
ACCEPTED: Final = {
    "a length": (sized(), 200),
    "a length with zeros before it": (head(b"Content-Length: 0052") + BODY, 200),
    "a length with blanks after it": (head(LENGTH + b" \t") + BODY, 200),
    "chunks": (chunked(), 200),
    "chunks in capitals": (chunked(b"transfer-ENCODING: CHUNKED"), 200),
    "a chunk size with zeros before it": (chunked(body=b"00" + CHUNKS), 200),
    "a chunk extension": (chunked(body=SIZE + b";a=b\r\n" + BODY + b"\r\n0\r\n\r\n"), 200),
    "a trailer": (chunked(body=CHUNKS[:-2] + b"X-T: a\r\n\r\n"), 200),
    "empty lines before it": (b"\r\n\r\n" + sized(), 200),
    "a name that only looks like a length": (sized(b"Content_Length: 5"), 200),
    "a length as hop-by-hop": (sized(b"Connection: Content-Length"), 200),
    "a whole URL": (line(b"POST http://other" + PATH + b" HTTP/1.1"), 200),
    "a CRLF in percent signs": (line(b"POST " + PATH + b"%0d%0aX:y HTTP/1.1"), 404),
    "a request as the body of a GET": (
        head(b"Content-Length: %d" % len(SECOND), line=b"GET /v2/health/live HTTP/1.1") + SECOND,
        200,
    ),
    "a declined change of protocol": (sized(b"Connection: Upgrade", b"Upgrade: websocket"), 200),
    "CONNECT": (head(line=b"CONNECT x:80 HTTP/1.1"), 404),
    "TRACE": (line(b"TRACE " + PATH + b" HTTP/1.1"), 404),
    "OPTIONS *": (head(line=b"OPTIONS * HTTP/1.1"), 404),
    "no body at all": (head(), 422),
}


async def statuses(running: RunningGateway, raw: bytes) -> tuple[list[int], bool]:
    """The answers to `raw` on one connection, and whether it was closed after them."""
    found = []
    async with connection(running.port) as client:
        client.send(raw)
        while True:
            try:
                # What is refused is closed at once; what is not would answer at once.
                async with asyncio.timeout(0.3 if len(found) > 1 else 5):
                    response = await read_response(client.reader)
            except TimeoutError:
                return found, False
            except (EOFError, ConnectionError):
                return found, True
            found.append(response.status)


@pytest.mark.parametrize("name", REFUSED)
async def test_ambiguous_framing_is_refused_with_everything_after_it(name: str) -> None:
    async with serving() as running:
        assert await statuses(running, REFUSED[name] + SECOND) == ([400], True)
        assert not running.engine.submitted
        await running.settled(**running.outcomes)


@pytest.mark.parametrize("name", ACCEPTED)
async def test_clear_framing_is_one_request(name: str) -> None:
    raw, status = ACCEPTED[name]
    async with serving() as running:
        assert await statuses(running, raw + SECOND) == ([status, 200], False)
        expected = 1 if status == 200 and raw.startswith((b"POST", b"\r\n")) else 0
        assert len(running.engine.submitted) == expected


async def test_after_a_declined_upgrade_to_http2_the_connection_goes_on() -> None:
    upgrade = (b"Connection: Upgrade, HTTP2-Settings", b"Upgrade: h2c", b"HTTP2-Settings: AAA")
    async with serving() as running, connection(running.port) as client:
        assert (await client.ask(sized(*upgrade))).status == 200
        assert (await client.ask(SECOND)).status == 200


def test_the_battery_is_large_enough() -> None:
    assert len(REFUSED) >= 40
