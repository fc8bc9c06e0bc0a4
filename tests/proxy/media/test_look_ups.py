"""Names are looked up once at a time, so many at once, and a silent one holds one place."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator, Sequence
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest

from proxy.media import look_ups
from proxy.media.build import media_desk
from proxy.media.desk import MediaDesk
from proxy.media.look_ups import LookUps
from proxy.settings import Settings
from tests.media_support import HOST, image, media_host, png, serves
from tests.proxy.media.test_desk import LOOPBACK, fetch, refusal
from tests.support import eventually
from translators.errors import ServiceUnavailable
from translators.media_urls import Address

ONE, TWO = ip_address("192.0.2.1"), ip_address("192.0.2.2")
LONG = 60.0
PLACES = look_ups._AT_ONCE


class Names:
    """A resolver that answers when it is told to. Records the questions."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self._answers: dict[str, asyncio.Future[Sequence[Address]]] = {}

    async def __call__(self, host: str, port: int) -> Sequence[Address]:
        self.asked.append(host)
        self._answers[host] = asyncio.get_running_loop().create_future()
        return await self._answers[host]

    def answer(self, host: str, *addresses: Address) -> None:
        self._answers[host].set_result(addresses)

    def fail(self, host: str) -> None:
        self._answers[host].set_exception(socket.gaierror("no such host"))


def ask(made: LookUps, *hosts: str, times: int = 1) -> list[asyncio.Task[Sequence[Address]]]:
    """Each time on another port."""
    return [
        asyncio.create_task(made.addresses(host, 80 + turn))
        for turn in range(times)
        for host in hosts
    ]


async def settled() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_all_who_ask_for_a_name_at_a_time_get_the_answer_of_one_look_up() -> None:
    names = Names()
    made = LookUps(names, LONG)
    asking = ask(made, "a", times=PLACES + 5)
    await settled()
    names.answer("a", ONE)
    assert await asyncio.gather(*asking) == [(ONE,)] * (PLACES + 5)
    assert names.asked == ["a"]


async def test_who_asks_after_the_answer_asks_anew() -> None:
    names = Names()
    made = LookUps(names, LONG)
    for address in (ONE, TWO):
        (asking,) = ask(made, "a")
        await settled()
        names.answer("a", address)
        assert await asking == (address,)
    assert names.asked == ["a", "a"]


async def test_all_who_ask_learn_that_there_is_no_address() -> None:
    names = Names()
    asking = ask(LookUps(names, LONG), "a", times=3)
    await settled()
    names.fail("a")
    assert await asyncio.gather(*asking) == [()] * 3


async def test_who_leaves_takes_the_answer_from_nobody() -> None:
    names = Names()
    leaving, staying = ask(LookUps(names, LONG), "a", times=2)
    await settled()
    leaving.cancel()
    await settled()
    names.answer("a", ONE)
    assert await staying == (ONE,)
    assert leaving.cancelled()


async def test_a_silent_name_holds_one_place_however_often_it_is_given_up() -> None:
    names = Names()
    made = LookUps(names, 0.005)
    for turn in range(PLACES + 5):
        assert await made.addresses("silent", turn) == ()
    assert names.asked == ["silent"]
    assert made._places._value == PLACES - 1
    names.answer("silent", ONE)
    await settled()
    assert made._places._value == PLACES


async def test_without_a_place_in_time_nothing_is_said_about_the_host() -> None:
    names = Names()
    made = LookUps(names, 0.02)
    silent = [f"silent-{number}" for number in range(PLACES)]
    assert await asyncio.gather(*ask(made, *silent)) == [()] * PLACES
    # They are given up, but they have not ended.
    with pytest.raises(ServiceUnavailable, match="at once") as caught:
        await made.addresses("a", 80)
    assert caught.value.retry_after
    # Whose look-up runs already needs no place.
    assert await made.addresses("silent-0", 80) == ()
    assert names.asked == silent


async def test_a_place_that_becomes_free_is_for_one_look_up_of_a_name() -> None:
    names = Names()
    made = LookUps(names, LONG)
    silent = ask(made, *(f"silent-{number}" for number in range(PLACES)))
    await settled()
    leaving, *waiting = ask(made, "a", "a", "a")
    await settled()
    leaving.cancel()
    for number in range(3):
        names.answer(f"silent-{number}")
    await settled()
    assert names.asked[PLACES:] == ["a"]
    names.answer("a", ONE)
    assert await asyncio.gather(*waiting) == [(ONE,)] * 2
    assert made._places._value == 3
    for task in silent:
        task.cancel()


# With the desk, and the system's resolver


class Resolver:
    """Takes the place of `getaddrinfo`: silent about some names for as long as is wanted."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.go = threading.Event()
        self._look_up = socket.getaddrinfo

    def __call__(self, host: str, port: Any, *others: Any, **named: Any) -> Any:
        if not host.endswith(".test"):
            return self._look_up(host, port, *others, **named)
        self.asked.append(host)
        if host == "other.test":
            return self._look_up("127.0.0.1", port, *others, **named)
        self.go.wait(10)
        return []


@pytest.fixture
def resolver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Resolver]:
    made = Resolver()
    monkeypatch.setattr(socket, "getaddrinfo", made)
    yield made
    made.go.set()


def desk_for(tmp_path: Path, *hosts: str, **changed: Any) -> MediaDesk:
    return media_desk(
        Settings(
            allowed_media_domains=",".join(hosts),
            media_private_networks=LOOPBACK,
            media_spool_dir=str(tmp_path),
            **changed,
        )
    )


async def test_a_host_whose_name_servers_are_silent_harms_no_other(
    tmp_path: Path, resolver: Resolver
) -> None:
    """Four requests with four images each, on as many ports."""
    made = desk_for(tmp_path, HOST, "other.test")
    held = [
        asyncio.create_task(
            refusal(made, *(image(f"http://{HOST}:{8000 + 4 * n + i}/a.png") for i in range(4)))
        )
        for n in range(4)
    ]
    await eventually(lambda: resolver.asked)
    async with media_host(serves(png())) as host:
        assert await fetch(made, image(host.url(host="other.test"))) == [png()]
    resolver.go.set()
    said = '"text_input[0]" gives a URL whose host has no public address'
    assert await asyncio.gather(*held) == [said] * 4
    assert resolver.asked == [HOST, "other.test"]
    await made.close()


async def test_too_many_silent_hosts_are_no_fault_of_another(
    tmp_path: Path, resolver: Resolver
) -> None:
    silent = [f"silent-{number}.test" for number in range(PLACES)]
    changed = {"media_connect_timeout": 0.05, "media_concurrency": PLACES}
    made = desk_for(tmp_path, "other.test", *silent, **changed)
    parts = [image(f"http://{name}/a.png") for name in silent]
    said = '"text_input[0]" gives a URL whose host has no public address'
    found = await asyncio.gather(*(refusal(made, part) for part in parts))
    assert found == [said] * PLACES
    with pytest.raises(ServiceUnavailable, match="at once") as caught:
        await fetch(made, image("http://other.test:1/a.png"))
    assert caught.value.retry_after
    assert sorted(resolver.asked) == sorted(silent)
