"""Which URLs and addresses media may come from: the attack list, without any network."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from yarl import URL

from translators.media_urls import (
    HostPolicy,
    MediaRefused,
    MediaUrl,
    is_public,
    literal_address,
    parse_hosts,
    parse_networks,
    parse_url,
)

ANY_HOST = HostPolicy(None)


@pytest.mark.parametrize(
    ("url", "host", "port", "target"),
    [
        ("http://a.example/x.png", "a.example", 80, "/x.png"),
        ("HTTPS://A.Example:8443/x%20y.png?q=1&r=%2F", "a.example", 8443, "/x%20y.png?q=1&r=%2F"),
        ("http://a.example", "a.example", 80, "/"),
        ("http://a.example?x", "a.example", 80, "/?x"),
        ("http://a.example/x??", "a.example", 80, "/x??"),
        ("http://a.example/x?=", "a.example", 80, "/x?="),
        ("http://a.example/x.png#@evil.example/", "a.example", 80, "/x.png"),
        ("http://a.example/图.png", "a.example", 80, "/%E5%9B%BE.png"),
        ('http://a.example/{"a"}|b', "a.example", 80, "/%7B%22a%22%7D%7Cb"),
        ("https://[2606:4700::1]/x", "2606:4700::1", 443, "/x"),
        ("http://a_b.example-1.org/", "a_b.example-1.org", 80, "/"),
    ],
)
def test_a_plain_url_is_taken_apart(url: str, host: str, port: int, target: str) -> None:
    parsed = parse_url(url)
    assert (parsed.host, parsed.port, parsed.target) == (host, port, target)


def test_the_address_takes_the_place_of_the_host() -> None:
    url = parse_url("https://a.example/x.png?y")
    assert url.host_header == "a.example"
    assert url.at(ipaddress.ip_address("1.2.3.4")) == "https://1.2.3.4:443/x.png?y"
    assert url.at(ipaddress.ip_address("2606::1")) == "https://[2606::1]:443/x.png?y"


@pytest.mark.parametrize(
    ("url", "header"),
    [
        ("http://a.example:80/", "a.example"),
        ("http://a.example:443/", "a.example:443"),
        ("http://[2606::1]/", "[2606::1]"),
        ("http://[2606::1]:8080/", "[2606::1]:8080"),
    ],
)
def test_the_host_header_names_the_host(url: str, header: str) -> None:
    assert parse_url(url).host_header == header


@pytest.mark.parametrize(
    "url",
    [
        "ftp://a.example/x",
        "gopher://a.example/x",
        "http:a.example/x",
        "http:/a.example/x",
        "http:///x",
        "http://",
        "//a.example/x",
        "http://user@a.example/x",
        "http://user:secret@a.example/x",
        "http://a.example@127.0.0.1/x",
        "http://a.example:80@127.0.0.1/x",
        "http://a.example\\@127.0.0.1/x",
        "http://127.0.0.1\\.a.example/x",
        "http:\\\\127.0.0.1\\x",
        "http://a.example/x\r\nHost: evil",
        "http://a.example/x\tz",
        "http://a.example /x",
        " http://a.example/x",
        "http://a.example/\x00",
        "http://a.example/\x7f",
        "http://a.example/\u2028",
        "http://a%2eexample/x",
        "http://%31%32%37.0.0.1/x",
        "http://\uff11\uff12\uff17.\uff10.\uff10.\uff11/x",
        "http://\u24dbocalhost/x",
        "http://127\u30020\u30020\u30021/x",
        "http://a..example/x",
        "http://.a.example/x",
        "http://a.example:0/x",
        "http://a.example:65536/x",
        "http://a.example:/x",
        "http://a.example:8o/x",
        "http://a.example:\uff18\uff10/x",
        "http://a.example:80:80/x",
        "http://[::1/x",
        "http://::1/x",
        "http://[::1]extra/x",
        "http://[fe80::1%25eth0]/x",
        "http://[1.2.3.4]/x",
        "http://a.example/" + "x" * 4096,
        "http://" + "a." * 200 + "example/x",
        "http://a.example/x?",
        "http://a.example?",
        "http://a.example/x?#y",
        "http://" + "a" * 64 + ".example/x",
    ],
)
def test_whatever_is_not_plain_is_refused(url: str) -> None:
    with pytest.raises(MediaRefused):
        parse_url(url)


def test_the_longest_url_passes() -> None:
    url = "http://a.example/".ljust(4096, "x")
    assert len(parse_url(url).target) == 4096 - len("http://a.example")


LOOPBACK = [
    "127.0.0.1",
    "127.1",
    "127.0.1",
    "2130706433",
    "0x7f000001",
    "0X7F.1",
    "0x7f.0.0.1",
    "017700000001",
    "0177.0.0.01",
    "0177.0x0.1",
    "127.0.0.1.",
    "[::ffff:127.0.0.1]",
    "[::ffff:7f00:1]",
    "[0:0:0:0:0:ffff:7f00:1]",
    "[64:ff9b::7f00:1]",
    "[2002:7f00:1::]",
]


@pytest.mark.parametrize("host", LOOPBACK)
def test_every_spelling_of_an_address_counts_as_one(host: str) -> None:
    address = literal_address(host)
    assert address is not None
    assert not is_public(address)


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("127.1", "127.0.0.1"),
        ("127.258", "127.0.1.2"),
        ("0x5DB8D822", "93.184.216.34"),
        ("0", "0.0.0.0"),
        ("010.0.0.1", "8.0.0.1"),
        ("0x", "0.0.0.0"),
        ("1.2.3.4", "1.2.3.4"),
        ("4294967295", "255.255.255.255"),
    ],
)
def test_old_spellings_are_read_as_resolvers_read_them(host: str, address: str) -> None:
    assert literal_address(host) == ipaddress.ip_address(address)


@pytest.mark.parametrize(
    "host",
    ["256.0.0.1", "1.2.3.256", "1.2.3.4.5", "4294967296", "08.0.0.1", "1.16777216", "a.0x", "a.1"],
)
def test_an_impossible_address_is_no_name(host: str) -> None:
    with pytest.raises(MediaRefused, match="impossible"):
        literal_address(host)


NOT_PUBLIC = [
    "0.0.0.0",
    "0.1.2.3",
    "10.1.2.3",
    "100.64.0.1",
    "100.100.100.200",
    "127.0.0.1",
    "127.255.255.254",
    "169.254.169.254",
    "172.16.0.1",
    "172.31.255.255",
    "192.0.0.192",
    "192.0.2.1",
    "192.168.1.1",
    "198.18.0.1",
    "198.51.100.1",
    "203.0.113.1",
    "224.0.0.1",
    "239.255.255.255",
    "240.0.0.1",
    "255.255.255.255",
    "168.63.129.16",
    "::",
    "::1",
    "::127.0.0.1",
    "::ffff:10.0.0.1",
    "::ffff:169.254.169.254",
    "64:ff9b::10.0.0.1",
    "64:ff9b:1::1",
    "100::1",
    "2001::1",
    "2001:db8::1",
    "2002:a00:1::",
    "2002:a9fe:a9fe::1",
    "3fff::1",
    "5f00::1",
    "fc00::1",
    "fd00:ec2::254",
    "fe80::1",
    "fec0::1",
    "ff02::1",
]
PUBLIC = ["1.1.1.1", "8.8.8.8", "93.184.216.34", "172.32.0.1", "100.128.0.1", "2606:4700::1111"]
PUBLIC += ["::ffff:8.8.8.8", "64:ff9b::8.8.8.8", "2002:808:808::1"]


@pytest.mark.parametrize("address", NOT_PUBLIC)
def test_what_is_not_public_is_refused(address: str) -> None:
    with pytest.raises(MediaRefused, match="public"):
        ANY_HOST.check_address(ipaddress.ip_address(address))


@pytest.mark.parametrize("address", PUBLIC)
def test_what_is_public_passes(address: str) -> None:
    ANY_HOST.check_address(ipaddress.ip_address(address))


@settings(deadline=None)
@given(st.ip_addresses())
@example(ipaddress.ip_address("192.88.99.1"))
def test_nothing_counts_as_public_that_the_standard_library_knows_is_not(
    address: ipaddress.IPv4Address | ipaddress.IPv6Address,
) -> None:
    if is_public(address) and not getattr(address, "sixtofour", None):
        assert address.is_global or address in ipaddress.ip_network("64:ff9b::/96")
        assert not address.is_multicast


def test_named_private_networks_are_allowed_and_no_others() -> None:
    policy = HostPolicy(None, parse_networks("10.1.0.0/16, fd00::/64"))
    for address in ("10.1.255.1", "::ffff:10.1.0.1", "fd00::5"):
        policy.check_address(ipaddress.ip_address(address))
    for address in ("10.2.0.1", "fd00:0:0:1::5", "127.0.0.1"):
        with pytest.raises(MediaRefused):
            policy.check_address(ipaddress.ip_address(address))


@pytest.mark.parametrize(
    "listed", ["10.1.0.1/16", "somewhere", "10.0.0.0/33", "10.0.0.0/8 fd00::/8"]
)
def test_networks_must_be_networks(listed: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        parse_networks(listed)


@pytest.mark.parametrize(
    "listed",
    ["0.0.0.0/0", "0.0.0.0/1", "::/0", "2000::/3", "8.8.8.8", "10.0.0.0/7", "2606:4700::/32"],
)
def test_networks_hold_nothing_public(listed: str) -> None:
    with pytest.raises(ValueError, match="holds public addresses"):
        parse_networks(f"10.0.0.0/8,{listed}")


@pytest.mark.parametrize("listed", ["::ffff:10.0.0.0/104", "64:ff9b::/96", "2002:a00::/24"])
def test_networks_of_ipv4_are_named_as_such(listed: str) -> None:
    with pytest.raises(ValueError, match="stands for IPv4 addresses"):
        parse_networks(listed)


@pytest.mark.parametrize(
    ("listed", "inside"),
    [
        ("10.0.0.0/8", "10.255.0.1"),
        ("172.16.0.0/12", "172.31.0.1"),
        ("100.64.0.0/10", "100.100.0.1"),
        ("127.0.0.1", "127.0.0.1"),
        ("fc00::/7", "fd00::1"),
        ("::1", "::1"),
        ("2001:db8::/48", "2001:db8::1"),
    ],
)
def test_a_network_that_is_accepted_works(listed: str, inside: str) -> None:
    HostPolicy(None, parse_networks(listed)).check_address(ipaddress.ip_address(inside))


def test_the_list_is_exact_and_ignores_case() -> None:
    policy = HostPolicy(parse_hosts(" A.example ,b.example,, 1.2.3.4,[2606::0:1]"))
    for host in ("a.example", "A.EXAMPLE", "1.2.3.4", "2606::1"):
        policy.check_host(host)
    for host in ("x.a.example", "a.example.", "example", "a.example.evil", "16909060", "2606::2"):
        with pytest.raises(MediaRefused, match="not on the list"):
            policy.check_host(host)


@pytest.mark.parametrize(
    "host",
    [
        "*.example.com",
        "*",
        ".example.com",
        "http://a.example",
        "a.example/",
        "a.example/path",
        "a.example:8080",
        "a.example b.example",
        "a.example;b.example",
        "user@a.example",
        "a.example?x",
        "a..example",
        "b\u00fccher.example",
        "1.2.3.256",
        "[::1",
        "[::1]:80",
        "fe80::1%eth0",
        "a" * 64,
        "a." * 127 + "example",
    ],
)
def test_what_no_host_can_equal_is_not_listed(host: str) -> None:
    with pytest.raises(ValueError, match="no exact name or address of a host"):
        parse_hosts(f"b.example,{host}")


@pytest.mark.parametrize(
    ("listed", "url"),
    [
        ("A.Example", "http://a.example:8080/x"),
        ("a_b.example-1.org", "http://A_b.example-1.org/"),
        ("xn--bcher-kva.example", "http://xn--bcher-kva.example/"),
        ("a.example.", "http://a.example./"),
        ("localhost", "http://localhost/"),
        ("1.2.3.4", "http://1.2.3.4/"),
        ("2606::0:1", "http://[2606::1]/"),
        ("[2606::1]", "http://[2606:0::1]:8/"),
    ],
)
def test_a_host_that_is_listed_works(listed: str, url: str) -> None:
    HostPolicy(parse_hosts(listed)).check_host(parse_url(url).host)


def test_an_empty_list_tells_the_operator_what_to_set() -> None:
    with pytest.raises(MediaRefused, match="ALLOWED_MEDIA_DOMAINS_ENV"):
        HostPolicy(frozenset()).check_host("a.example")


@settings(deadline=None)
@given(
    st.text(max_size=60).map("http://a.example/".__add__)
    | st.text("/?#&=;.%+:a", max_size=8).map("http://a.example".__add__)
    | st.text(max_size=80)
)
@example("http://a.example/x?")
@example("http://a.example?#")
@example("http://a.example/x??")
def test_what_passes_is_read_alike_by_the_http_client(url: str) -> None:
    try:
        parsed = parse_url(url)
    except MediaRefused:
        return
    assert isinstance(parsed, MediaUrl)
    assert parsed.target.isascii()
    assert parsed.target.isprintable()
    client = URL(parsed.at(ipaddress.ip_address("1.2.3.4")), encoded=True)
    assert (client.host, client.port) == ("1.2.3.4", parsed.port)
    assert client.raw_path_qs == parsed.target
