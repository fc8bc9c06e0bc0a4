"""Turns at the media desk: how many at once, in which order, and how many for one host."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from contextlib import AsyncExitStack

import pytest

from proxy.media.turns import Turns, share_of
from translators.errors import ServiceUnavailable


def later(seconds: float = 60) -> float:
    return asyncio.get_running_loop().time() + seconds


class Asker:
    """Takes a turn, says so, and keeps it until told."""

    def __init__(self, turns: Turns, hosts: Collection[str], log: list[Asker]) -> None:
        self._turns, self._hosts, self._log = turns, hosts, log
        self.done = asyncio.Event()
        self.task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        async with self._turns.turn(self._hosts, later()):
            self._log.append(self)
            await self.done.wait()

    async def leave(self) -> None:
        self.done.set()
        await self.task
        await settled()


async def settled() -> None:
    """Everyone has done what can be done now."""
    for _ in range(5):
        await asyncio.sleep(0)


@pytest.mark.parametrize(
    ("places", "share"), [(1, 1), (2, 1), (3, 2), (4, 3), (7, 6), (8, 6), (256, 192)]
)
def test_the_share_of_one_host(places: int, share: int) -> None:
    assert share_of(places) == share


async def test_turns_are_taken_in_order() -> None:
    turns, log = Turns(2), list[Asker]()
    askers = [Asker(turns, (), log) for _ in range(5)]
    await settled()
    assert log == askers[:2]
    for number in range(5):
        await askers[number].leave()
        assert log == askers[: number + 3]
    assert turns.waiting == 0


async def test_one_host_gets_its_share_and_is_passed_by() -> None:
    turns, log = Turns(4), list[Asker]()
    slow = [Asker(turns, {"slow"}, log) for _ in range(5)]
    await settled()
    assert log == slow[:3]
    other, both, none = Asker(turns, {"b"}, log), Asker(turns, {"b", "slow"}, log), None
    await settled()
    assert log == [*slow[:3], other]
    await other.leave()
    # `both` waits for the slow host as well: who needs no host goes before it.
    none = Asker(turns, (), log)
    await settled()
    assert log[4:] == [none]
    # Those of the host itself go on in order.
    await slow[0].leave()
    assert log[5:] == [slow[3]]
    for asker in (*slow[1:4], none):
        await asker.leave()
    assert log[6:] == [slow[4], both]
    for asker in (slow[4], both):
        await asker.leave()
    assert (turns._free, turns._held, turns.waiting) == (4, {}, 0)


async def test_a_queue_full_of_one_host_has_room_for_others() -> None:
    turns, log = Turns(1), list[Asker]()
    askers = [Asker(turns, {"slow"}, log) for _ in range(1 + share_of(32))]
    await settled()
    with pytest.raises(ServiceUnavailable, match="at once") as caught:
        async with turns.turn({"slow", "b"}, later()):
            pass
    assert caught.value.retry_after
    askers += [Asker(turns, {"b"}, log) for _ in range(32 - share_of(32))]
    await settled()
    with pytest.raises(ServiceUnavailable):
        async with turns.turn((), later()):
            pass
    for asker in askers:
        asker.done.set()
    await asyncio.gather(*(asker.task for asker in askers))
    assert (turns._free, turns.waiting) == (1, 0)


async def test_who_is_not_served_in_time_or_leaves_gives_up_the_place() -> None:
    turns, log = Turns(1), list[Asker]()
    async with turns.turn({"a"}, later()):
        with pytest.raises(ServiceUnavailable):
            async with turns.turn({"a"}, later(0)):
                pytest.fail("there is no second turn")
        leaving, staying = Asker(turns, {"a"}, log), Asker(turns, {"b"}, log)
        await settled()
        leaving.task.cancel()
        await settled()
        assert turns.waiting == 1
    await settled()
    assert log == [staying]
    await staying.leave()
    assert (turns._free, turns._held) == (1, {})


async def test_a_turn_that_comes_while_its_request_leaves_goes_to_the_next() -> None:
    turns, log = Turns(1), list[Asker]()
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(turns.turn((), later()))
        leaving, staying = Asker(turns, (), log), Asker(turns, (), log)
        await settled()
        # Granted first, cancelled second, before either has run on.
        await stack.aclose()
        leaving.task.cancel()
        await settled()
    assert log == [staying]
    await staying.leave()
    assert turns._free == 1
