"""What workers with engines in common know of them: the board, and the line's beginning and end."""

from __future__ import annotations

import asyncio
import socket
from dataclasses import dataclass, field
from typing import Any

import pytest

from proxy.crew import Worker
from proxy.engines.base import Load
from proxy.engines.engine_line import Board, EngineLine, SharedFigures, tell


@dataclass
class Cache:
    queries: int
    hits: int


@dataclass
class Report:
    num_running_reqs: int = 0
    num_waiting_reqs: int = 0
    num_skipped_waiting_reqs: int = 0
    kv_cache_usage: float = 0.0
    prefix_cache_stats: Any = field(default=None)


def both() -> tuple[Board, SharedFigures, SharedFigures]:
    board = Board(2)
    return board, SharedFigures(board, Worker(0, 2)), SharedFigures(board, Worker(1, 2))


def test_the_newest_report_counts_whoever_got_it() -> None:
    _, one, other = both()
    assert one.load() == other.load() == Load()
    one.scheduled(0, Report(5, 2, 1, 0.5))
    assert one.load() == other.load() == Load(5, 3, 0.5, 0, 0, 0)
    other.scheduled(0, Report(6))
    assert one.of(0) == other.of(0) == Load(6, 0, 0.0, 0, 0, 0)
    one.scheduled(0, Report(7))
    assert other.of(0).running == 7


def test_what_each_was_told_adds_up() -> None:
    _, one, other = both()
    one.scheduled(0, Report(1, prefix_cache_stats=Cache(10, 4)))
    other.scheduled(0, Report(2, prefix_cache_stats=Cache(5, 1)))
    one.preempted(0, 2)
    other.preempted(0, 1)
    other.preempted(0, 0)
    # A preemption is no news of the scheduler.
    assert one.load() == other.load() == Load(2, 0, 0.0, 3, 15, 5)


def test_several_engines_are_one() -> None:
    _, one, other = both()
    one.scheduled(0, Report(1, kv_cache_usage=0.2))
    other.scheduled(2, Report(3, kv_cache_usage=0.4))
    assert one.load().running == 4
    assert one.load().kv_cache_usage == pytest.approx(0.2)
    assert one.of(2).running == 3


def test_it_is_known_who_heard_last() -> None:
    board, one, other = both()
    assert board.heard(0) == board.heard(1) == 0
    one.scheduled(0, Report())
    other.scheduled(0, Report())
    assert 0 < board.heard(0) <= board.heard(1)
    one.scheduled(1, Report())
    assert board.heard(0) >= board.heard(1)
    other.preempted(1, 1)
    assert board.heard(0) >= board.heard(1)


async def test_the_line_tells_where_the_engines_are_and_that_they_are_gone() -> None:
    ours, its = socket.socketpair()
    line = EngineLine(its, Worker(0, 2), Board(2))
    asked = asyncio.create_task(line.addresses())
    tell([ours], [{"input_address": "ipc://a", "output_address": "ipc://b"}])
    assert await asked == {"input_address": "ipc://a", "output_address": "ipc://b"}
    ending = asyncio.create_task(line.end())
    await asyncio.sleep(0)
    assert not ending.done()
    ours.close()
    await asyncio.wait_for(ending, 5)


def test_a_worker_that_has_ended_is_told_nothing_and_the_others_are() -> None:
    (ended, gone), (ours, its) = socket.socketpair(), socket.socketpair()
    gone.close()
    tell([ended, ours], [{}, {"input_address": "ipc://a"}])
    assert its.recv(100) == b'{"input_address":"ipc://a"}\n'


async def test_without_a_word_it_waits_for_the_parents() -> None:
    ours, its = socket.socketpair()
    asked = asyncio.create_task(EngineLine(its, Worker(0, 2), Board(2)).addresses())
    ours.close()
    done, _ = await asyncio.wait({asked}, timeout=0.05)
    assert not done
    asked.cancel()
