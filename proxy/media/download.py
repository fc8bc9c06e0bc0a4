"""Fetching a medium over HTTP from the very address that was checked (contract §6).

The host is resolved once, here; every address of the answer is checked, and the
HTTP client is given a URL that holds an address in the host's place. It has
nothing left to resolve, and would fail if it tried. The host's name travels in
the Host header and in TLS, where the certificate is checked against it.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import urllib.request
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final, NoReturn

import aiohttp
from aiohttp import hdrs
from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL

from proxy.media.look_ups import LookUps, Resolve, system_addresses
from proxy.media.paced import MostlyFraming, PacedConnector
from translators.media_urls import (
    NO_PUBLIC_ADDRESS,
    Address,
    HostPolicy,
    MediaRefused,
    MediaUrl,
)

log = logging.getLogger(__name__)

_CHUNK: Final = 64 * 1024
_REDIRECTS: Final = (301, 302, 303, 307, 308)
_TRIED: Final = 3
"""Addresses of one host that are tried, one after the other."""
_PLAIN: Final = frozenset(("", "identity"))
"""Content codings that change nothing."""
_HEADERS: Final = {"User-Agent": "mindie-gateway", "Accept-Encoding": "identity", "Accept": "*/*"}


@dataclass(frozen=True, slots=True)
class FetchTimes:
    """Limits in seconds."""

    connect: float
    """To resolve the host, and to connect to one of its addresses, TLS included."""
    read: float
    """Between two pieces of data."""


class Downloader:
    """Opens URLs whose hosts have passed the allow list."""

    def __init__(
        self,
        policy: HostPolicy,
        times: FetchTimes,
        *,
        trust_env: bool = False,
        resolve: Resolve | None = None,
    ) -> None:
        self._policy = policy
        self._times = times
        self._trust_env = trust_env
        self._look_ups = LookUps(resolve or system_addresses, times.connect)
        self._session: aiohttp.ClientSession | None = None

    @asynccontextmanager
    async def open(self, url: MediaUrl) -> AsyncIterator[Download]:
        """The body of a GET. MediaRefused unless the answer is a plain 200.

        ServiceUnavailable when too many names are being looked up.
        """
        addresses = await self._checked_addresses(url)
        try:
            async with await self._connect(url, addresses) as response:
                _check_answer(response)
                yield Download(response)
        except TimeoutError:
            raise MediaRefused("was not sent by its host in time") from None
        except MostlyFraming:
            raise MediaRefused(
                "was sent by its host in too small pieces, or with too much around it"
            ) from None
        except (aiohttp.ClientError, OSError) as error:
            log.debug("a medium could not be fetched: %s", type(error).__name__)
            raise MediaRefused("could not be fetched from its host") from None

    async def _checked_addresses(self, url: MediaUrl) -> Sequence[Address]:
        if url.address is not None:
            addresses: Sequence[Address] = [url.address]
        else:
            addresses = await self._look_up(url)
        # One address that is not public makes the whole host suspicious.
        for address in addresses:
            self._policy.check_address(address)
        return addresses[:_TRIED]

    async def _look_up(self, url: MediaUrl) -> Sequence[Address]:
        addresses = await self._look_ups.addresses(url.host, url.port)
        if not addresses:
            # In the words for one that is not public: which names there are inside is nobody's
            # business.
            raise MediaRefused(NO_PUBLIC_ADDRESS)
        return addresses

    async def _connect(self, url: MediaUrl, addresses: Sequence[Address]) -> aiohttp.ClientResponse:
        for address in addresses[:-1]:
            with contextlib.suppress(aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError):
                return await self._get(url, address)
        return await self._get(url, addresses[-1])

    async def _get(self, url: MediaUrl, address: Address) -> aiohttp.ClientResponse:
        return await self._client().get(
            URL(url.at(address), encoded=True),
            headers={"Host": url.host_header},
            proxy=self._proxy(url),
            server_hostname=url.host if url.scheme == "https" else None,
            allow_redirects=False,
        )

    def _proxy(self, url: MediaUrl) -> str | None:
        """The operator's proxy for this URL; it, too, is told the checked address."""
        if not self._trust_env:
            return None
        if urllib.request.proxy_bypass(url.host):
            return None
        return urllib.request.getproxies().get(url.scheme)

    def _client(self) -> aiohttp.ClientSession:
        if self._session is None:
            times = self._times
            self._session = aiohttp.ClientSession(
                # A connection serves one request: none is ever reused for another host.
                connector=PacedConnector(
                    # A proxy may have a name; what is fetched through it never does.
                    resolver=aiohttp.ThreadedResolver() if self._trust_env else _NoResolver(),
                    use_dns_cache=False,
                    force_close=True,
                    limit=0,
                ),
                timeout=aiohttp.ClientTimeout(
                    total=None,
                    connect=times.connect,
                    sock_connect=times.connect,
                    sock_read=times.read,
                ),
                headers=_HEADERS,
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
            )
        return self._session

    async def close(self) -> None:
        """Close every connection."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()


class Download:
    """The body of one answer."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response

    @property
    def declared_size(self) -> int | None:
        """What Content-Length claims."""
        return self._response.content_length

    def chunks(self) -> AsyncIterator[bytes]:
        """The body as it comes, in pieces of at most 64 KiB."""
        return self._response.content.iter_chunked(_CHUNK)


def _check_answer(response: aiohttp.ClientResponse) -> None:
    if response.status in _REDIRECTS:
        raise MediaRefused("gives a URL that redirects; redirects are not followed")
    if response.status != HTTPStatus.OK:
        raise MediaRefused(f"could not be fetched: its host answered {response.status}")
    if not _PLAIN.issuperset(_listed(response, hdrs.CONTENT_ENCODING)):
        raise MediaRefused("was sent compressed by its host, which is not accepted")
    # Chunks alone are taken apart; any other coding would be taken for the medium.
    if _listed(response, hdrs.TRANSFER_ENCODING) not in ([], ["chunked"]):
        raise MediaRefused("was sent by its host in a transfer coding that is not accepted")


def _listed(response: aiohttp.ClientResponse, name: str) -> list[str]:
    """The items of a header, of all its lines."""
    lines = response.headers.getall(name, ())
    return [item.strip().lower() for line in lines for item in line.split(",")]


class _NoResolver(AbstractResolver):
    """For the HTTP client, which must never resolve anything itself."""

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        _refuse_to_resolve()

    async def close(self) -> None:
        """Nothing to close."""


def _refuse_to_resolve() -> NoReturn:
    raise OSError("media are fetched from addresses, never from names")
