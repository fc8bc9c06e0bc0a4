"""Which URLs and which addresses media may come from (contract §6). Pure: resolves nothing.

A URL is taken apart by one strict grammar, here and nowhere else, and is put
together again from its parts before it is used: no second parser can read it
differently. Anything unusual is refused rather than understood.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from ipaddress import (
    IPv4Address,
    IPv4Network,
    IPv6Address,
    IPv6Network,
    ip_address,
    ip_network,
)
from typing import Final
from urllib.parse import quote

from translators.media_formats import MAX_URL_LENGTH

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

DEFAULT_PORTS: Final = {"http": 80, "https": 443}
_SPLIT: Final = re.compile(
    r"(?P<scheme>https?)://(?P<authority>[^/?#]*)(?P<target>[^#]*)(?:#.*)?",
    re.IGNORECASE | re.DOTALL,
)
_AUTHORITY: Final = re.compile(
    r"(?P<host>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9_.-]+)(?::(?P<port>[0-9]{1,5}))?"
)
_NAME: Final = re.compile(r"(?:[A-Za-z0-9_-]{1,63}\.)*[A-Za-z0-9_-]{1,63}\.?")
_MAX_NAME: Final = 253
_PORTS: Final = range(1, 1 << 16)
_NUMBER: Final = re.compile(r"0[xX][0-9A-Fa-f]*|[0-9]+")
_UNPRINTABLE: Final = re.compile(r"[\x00-\x20\x7f-\xa0\u2028\u2029]")
# What stands in a path or query as it is; `quote` escapes the rest as UTF-8.
_KEPT: Final = "!$%&'()*+,/:;=?@[]~"

_NOT_PUBLIC: Final = tuple(
    map(
        ip_network,
        (
            "0.0.0.0/8",
            "10.0.0.0/8",
            "100.64.0.0/10",
            "127.0.0.0/8",
            "169.254.0.0/16",
            "172.16.0.0/12",
            "192.0.0.0/24",
            "192.0.2.0/24",
            "192.88.99.0/24",
            "192.168.0.0/16",
            "198.18.0.0/15",
            "198.51.100.0/24",
            "203.0.113.0/24",
            "224.0.0.0/3",
            # Public by number, but the way into the host on one cloud.
            "168.63.129.16/32",
            "2001::/23",
            "2001:db8::/32",
            "3fff::/20",
        ),
    )
)
"""Networks that are no part of the public internet (IANA special-purpose registries).

For IPv6 only what lies inside `_GLOBAL_UNICAST` needs to be listed.
"""
_GLOBAL_UNICAST: Final = IPv6Network("2000::/3")
_SIX_TO_FOUR: Final = IPv6Network("2002::/16")
_NAT64: Final = IPv6Network("64:ff9b::/96")
_EMBEDDING: Final = (IPv6Network("::ffff:0:0/96"), _NAT64, _SIX_TO_FOUR)
"""Networks whose addresses are judged by the IPv4 address that they hold."""
NO_PUBLIC_ADDRESS: Final = "gives a URL whose host has no public address"


class MediaRefused(Exception):
    """A media item breaks a rule. The text follows the name of the part."""


@dataclass(frozen=True, slots=True)
class MediaUrl:
    """A URL that follows the grammar, in parts."""

    scheme: str
    host: str
    """Lower case; an IPv6 address without brackets."""
    port: int
    target: str
    """Path and query, ASCII, as they go on the wire."""
    address: Address | None
    """Set when the host is an address, however it is spelt."""

    @property
    def host_header(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == DEFAULT_PORTS[self.scheme] else f"{host}:{self.port}"

    def at(self, address: Address) -> str:
        """The same URL with an address in the host's place: nothing is left to resolve."""
        host = f"[{address}]" if isinstance(address, IPv6Address) else str(address)
        return f"{self.scheme}://{host}:{self.port}{self.target}"


@dataclass(frozen=True, slots=True)
class HostPolicy:
    """Where media may come from."""

    hosts: frozenset[str] | None
    """The allow list, as `normal_host` writes it. None: every public host."""
    networks: tuple[Network, ...] = ()
    """Networks that are allowed although they are not public."""

    def check_host(self, host: str) -> None:
        """MediaRefused unless `host` is on the allow list."""
        if self.hosts is None:
            return
        if not self.hosts:
            raise MediaRefused(
                "gives a URL, but no media host is allowed: "
                "the operator has to set ALLOWED_MEDIA_DOMAINS_ENV first"
            )
        if normal_host(host) not in self.hosts:
            raise MediaRefused("gives a URL whose host is not on the list of allowed media hosts")

    def check_address(self, address: Address) -> None:
        """MediaRefused unless `address` is public or explicitly allowed."""
        if not is_public(address) and not self._allows(address):
            raise MediaRefused(NO_PUBLIC_ADDRESS)

    def _allows(self, address: Address) -> bool:
        inner = _embedded(address) or address
        return any(inner in network for network in self.networks)


def parse_hosts(listed: str) -> frozenset[str]:
    """The allow list from its comma list. Raises ValueError for what no URL's host can equal."""
    hosts = [host.strip() for host in listed.split(",") if host.strip()]
    for host in hosts:
        _check_listed(host)
    return frozenset(map(normal_host, hosts))


def _check_listed(host: str) -> None:
    # An IPv6 address may be listed without its brackets.
    spelt = f"[{host}]" if ":" in host and not host.startswith("[") else host
    if _AUTHORITY.fullmatch(spelt):
        try:
            literal_address(spelt)
        except MediaRefused:
            pass
        else:
            return
    raise ValueError(
        f'"{host}" is no exact name or address of a host: list each host by itself, '
        "without wildcard, scheme, port, path or user, separated by commas"
    )


def normal_host(host: str) -> str:
    """A host for comparing: lower case, an address in its usual form, no brackets."""
    bare = host.lower().removeprefix("[").removesuffix("]")
    try:
        return str(ip_address(bare))
    except ValueError:
        return bare


def parse_networks(listed: str) -> tuple[Network, ...]:
    """Networks from a comma list, none of them with public addresses.

    Raises ValueError for anything else.
    """
    networks = tuple(ip_network(item.strip()) for item in listed.split(",") if item.strip())
    for network in networks:
        _check_inner(network)
    return networks


def _check_inner(network: Network) -> None:
    if isinstance(network, IPv6Network):
        if any(map(network.subnet_of, _EMBEDDING)):
            raise ValueError(f"{network} stands for IPv4 addresses: name their network")
        inner = not network.overlaps(_GLOBAL_UNICAST) or _within(network)
    else:
        inner = _within(network)
    if not inner:
        raise ValueError(
            f"{network} holds public addresses, which are allowed anyway: "
            "name the private network alone"
        )


def _within(network: Network) -> bool:
    """Whether all of a network is none of the public internet."""
    return any(
        type(outer) is type(network) and network.subnet_of(outer)  # type: ignore[arg-type]
        for outer in _NOT_PUBLIC
    )


def parse_url(url: str) -> MediaUrl:
    """Take an http(s) URL apart. MediaRefused for whatever is not plain."""
    if len(url) > MAX_URL_LENGTH:
        raise MediaRefused(f"gives a URL of {len(url)} characters, at most {MAX_URL_LENGTH}")
    if _UNPRINTABLE.search(url) or "\\" in url:
        raise MediaRefused("gives a URL with a space, a control character or a backslash")
    match = _SPLIT.fullmatch(url)
    if match is None:
        raise MediaRefused("gives a URL that is not http:// or https://")
    if "@" in match["authority"]:
        raise MediaRefused("gives a URL with user information")
    authority = _AUTHORITY.fullmatch(match["authority"])
    if authority is None:
        raise MediaRefused("gives a URL whose host is not a plain name or address and port")
    scheme, host = match["scheme"].lower(), authority["host"].lower()
    return MediaUrl(
        scheme=scheme,
        host=host.strip("[]"),
        port=_port(authority["port"], DEFAULT_PORTS[scheme]),
        target=_target(match["target"]),
        address=literal_address(host),
    )


def _port(digits: str | None, default: int) -> int:
    port = default if digits is None else int(digits)
    if port not in _PORTS:
        raise MediaRefused("gives a URL with an impossible port")
    return port


def _target(target: str) -> str:
    _, mark, query = target.partition("?")
    if mark and not query:
        # The HTTP client would leave the mark out, which is another URL.
        raise MediaRefused('gives a URL with an empty query: leave out the "?" at its end')
    escaped = quote(target, safe=_KEPT)
    return escaped if escaped.startswith("/") else "/" + escaped


def literal_address(host: str) -> Address | None:
    """The address that `host` spells, None for a name. MediaRefused when it is neither.

    Every spelling that some resolver takes for an address counts as one:
    `127.1`, `0x7f000001`, `017700000001`, `2130706433`, `[::ffff:127.0.0.1]`.
    """
    if host.startswith("["):
        try:
            return IPv6Address(host[1:-1])
        except ValueError:
            raise MediaRefused("gives a URL with an impossible IPv6 address") from None
    if len(host) > _MAX_NAME or not _NAME.fullmatch(host):
        raise MediaRefused("gives a URL with an impossible host name")
    labels = host.removesuffix(".").split(".")
    if not _NUMBER.fullmatch(labels[-1]):
        return None
    return _legacy_ipv4(labels)


def _legacy_ipv4(labels: list[str]) -> IPv4Address:
    """The reading of `inet_aton`: octal, hexadecimal, and a last number that fills the rest."""
    try:
        *leading, last = map(_legacy_number, labels)
        # Each number before the last is one byte; the last one fills what is left.
        return IPv4Address(bytes(leading) + last.to_bytes(4 - len(leading), "big"))
    except (ValueError, OverflowError):
        raise MediaRefused("gives a URL with an impossible address") from None


def _legacy_number(text: str) -> int:
    if not _NUMBER.fullmatch(text):
        raise ValueError(text)
    if text[:2].lower() == "0x":
        return int(text[2:] or "0", 16)
    return int(text, 8 if text.startswith("0") else 10)


def is_public(address: Address) -> bool:
    """Whether an address belongs to the public internet, what it embeds included."""
    inner = _embedded(address)
    if inner is not None:
        return is_public(inner)
    if isinstance(address, IPv6Address) and address not in _GLOBAL_UNICAST:
        return False
    return not any(address in network for network in _NOT_PUBLIC)


def _embedded(address: Address) -> IPv4Address | None:
    """The IPv4 address that traffic to an IPv6 address really goes to, if any."""
    if isinstance(address, IPv4Address):
        return None
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    if address in _NAT64:
        return IPv4Address(int(address) & 0xFFFF_FFFF)
    return address.sixtofour if address in _SIX_TO_FOUR else None
