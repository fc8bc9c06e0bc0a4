"""Frames that are sent together: in order, once, and never to one who has left."""

from __future__ import annotations

import asyncio
from typing import Any

from proxy.outbox import Outbox


class Client:
    """A transport that keeps what it is given."""

    def __init__(self, sent: list[tuple[str, bytes]], name: str) -> None:
        self._sent = sent
        self._name = name
        self.left = False

    def is_closing(self) -> bool:
        return self.left

    def write(self, data: bytes) -> None:
        assert not self.left
        self._sent.append((self._name, data))


def clients(*names: str) -> tuple[list[tuple[str, bytes]], list[Any]]:
    sent: list[tuple[str, bytes]] = []
    return sent, [Client(sent, name) for name in names]


async def test_what_one_task_makes_is_sent_when_it_gives_way() -> None:
    sent, (a, b) = clients("a", "b")
    outbox = Outbox()
    outbox.put(a, b"1")
    outbox.put(b, b"2")
    assert sent == []
    await asyncio.sleep(0)
    assert sent == [("a", b"1"), ("b", b"2")]
    outbox.put(a, b"3")
    await asyncio.sleep(0)
    assert sent[2:] == [("a", b"3")]


async def test_several_tokens_of_one_client_are_one_send() -> None:
    sent, (a, b) = clients("a", "b")
    outbox = Outbox()
    for client, data in ((a, b"1"), (a, b"2"), (b, b"3"), (a, b"4")):
        outbox.put(client, data)
    outbox.send()
    assert sent == [("a", b"12"), ("b", b"3"), ("a", b"4")]
    await asyncio.sleep(0)
    assert len(sent) == 3


async def test_one_who_has_left_gets_nothing_and_the_others_theirs() -> None:
    sent, (a, b) = clients("a", "b")
    outbox = Outbox()
    outbox.put(a, b"1")
    outbox.put(b, b"2")
    a.left = True
    outbox.send()
    assert sent == [("b", b"2")]


async def test_many_do_not_wait_for_the_task() -> None:
    sent, many = clients(*map(str, range(100)))
    outbox = Outbox()
    for client in many:
        outbox.put(client, b"x")
    assert len(sent) == 64
    await asyncio.sleep(0)
    assert len(sent) == 100


async def test_much_does_not_wait_either() -> None:
    sent, (a,) = clients("a")
    outbox = Outbox()
    for _ in range(3):
        outbox.put(a, bytes(40_000))
    assert [len(data) for _, data in sent] == [80_000]
    await asyncio.sleep(0)
    assert [len(data) for _, data in sent] == [80_000, 40_000]
