"""Where the bytes of a medium stay, and that they are gone afterwards."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path

import pytest

from proxy.media.content import BLOCK, Content, DiskReserve, Spool
from proxy.threads import joined
from tests.media_support import names_in, open_files
from translators.errors import ServiceUnavailable


@pytest.mark.parametrize("size", [0, 5, 100, 101, 3 * BLOCK + 7])
async def test_what_goes_in_comes_out(tmp_path: Path, size: int) -> None:
    data = os.urandom(size)
    spool = Spool(str(tmp_path), memory_limit=100)
    for start in range(0, size, 60_000):
        await spool.write(data[start : start + 60_000])
    content = await spool.finish()
    assert content.size == size
    assert content.read() == data
    assert b"".join(content.blocks(1000)) == data
    assert content.read_at(3, 4) == data[3:7]
    assert content.read_at(size, 4) == b""
    content.close()


async def test_little_stays_in_memory_and_more_has_no_name(tmp_path: Path) -> None:
    before = open_files()
    little, much = Spool(str(tmp_path), 100), Spool(str(tmp_path), 100)
    await little.write(bytes(100))
    assert open_files() == before
    await much.write(bytes(101))
    assert len(open_files()) == len(before) + 1
    assert names_in(tmp_path) == []
    contents = [await little.finish(), await much.finish()]
    for content in contents:
        content.close()
        content.close()
    assert open_files() == before


async def test_a_spool_that_is_not_finished_leaves_nothing(tmp_path: Path) -> None:
    before = open_files()
    spool = Spool(str(tmp_path), 0)
    await spool.write(b"x")
    spool.close()
    spool.close()
    assert open_files() == before
    assert names_in(tmp_path) == []


async def test_a_duplicate_has_a_life_of_its_own(tmp_path: Path) -> None:
    before = open_files()
    for limit in (0, 100):
        spool = Spool(str(tmp_path), limit)
        await spool.write(b"abc")
        content = await spool.finish()
        copy = content.duplicate()
        content.close()
        assert copy.read() == b"abc"
        copy.close()
    assert open_files() == before


@pytest.mark.parametrize("limit", [0, 100])
async def test_a_descriptor_begins_at_the_beginning(tmp_path: Path, limit: int) -> None:
    spool = Spool(str(tmp_path), limit)
    await spool.write(b"abc")
    content = await spool.finish()
    for _ in range(2):
        descriptor = content.descriptor()
        assert os.read(descriptor, 10) == b"abc"
        os.close(descriptor)
    assert content.read() == b"abc"
    content.close()


async def test_forgotten_content_is_freed(tmp_path: Path) -> None:
    before = open_files()
    spool = Spool(str(tmp_path), 0)
    await spool.write(b"abc")
    content = await spool.finish()
    assert len(open_files()) == len(before) + 1
    del content
    assert open_files() == before


def test_a_file_that_shrinks_gives_what_there_is(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"0123456789")
    content = Content(10, fd=os.open(path, os.O_RDONLY))
    path.write_bytes(b"012")
    assert content.read() == b"012"
    path.write_bytes(b"0123456789abcdef")
    assert content.read() == b"0123456789"
    content.close()


async def test_a_full_disk_is_503(tmp_path: Path) -> None:
    spool = Spool(str(tmp_path / "missing"), 0)
    with pytest.raises(ServiceUnavailable, match="disk"):
        await spool.write(b"x")


def test_no_more_is_promised_than_the_disk_keeps(monkeypatch: pytest.MonkeyPatch) -> None:
    reserve = DiskReserve(None)
    monkeypatch.setattr(reserve, "free", lambda: 1500)
    with reserve.hold(600):
        with reserve.hold(400), pytest.raises(ServiceUnavailable, match="disk"), reserve.hold(1):
            pass
        with reserve.hold(0), reserve.hold(400):
            pass
    with reserve.hold(1000):
        pass


def test_the_reserve_follows_the_pages_formula() -> None:
    gib = 1 << 30
    assert DiskReserve.needed(512 << 20, 1000) == 750 * gib
    assert DiskReserve("/").free() > 0


async def test_work_in_a_thread_ends_before_its_files_are_closed() -> None:
    begun, go = threading.Event(), threading.Event()
    ended: list[bool] = []

    def work() -> None:
        begun.set()
        go.wait(10)
        ended.append(True)

    async def caller() -> None:
        try:
            await joined(work)
        finally:
            ended.append(False)

    task = asyncio.create_task(caller())
    await asyncio.to_thread(begun.wait, 10)
    task.cancel()
    await asyncio.sleep(0)
    go.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended == [True, False]


async def test_joined_hands_on_results_and_errors() -> None:
    assert await joined(lambda: 5) == 5
    with pytest.raises(ZeroDivisionError):
        await joined(lambda: 1 // 0)
