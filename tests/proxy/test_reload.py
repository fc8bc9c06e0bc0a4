"""Files are read again when they change, and only then."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from proxy.reload import Reloader
from proxy.settings import SettingsError


class Reader:
    """Counts its calls; fails while `broken`."""

    def __init__(self) -> None:
        self.calls = 0
        self.broken = False
        self.called = asyncio.Event()

    async def __call__(self) -> None:
        self.calls += 1
        self.called.set()
        if self.broken:
            raise SettingsError("broken by the test")


@pytest.fixture
def failures() -> list[str]:
    return []


@pytest.fixture
async def reloader(failures: list[str]) -> Reloader:
    return Reloader(failures.append)


async def test_it_reads_at_the_start_and_upon_a_change_only(
    reloader: Reloader, tmp_path: Path
) -> None:
    file, reader = tmp_path / "a", Reader()
    file.write_text("1")
    await reloader.add("a", [file], reader)
    await reloader.look()
    assert reader.calls == 1
    file.write_text("22")
    await reloader.look()
    await reloader.look()
    assert reader.calls == 2


async def test_a_swapped_link_is_a_change(reloader: Reloader, tmp_path: Path) -> None:
    # As Kubernetes updates a mounted secret: same size, same time, another file.
    for name in ("one", "two"):
        (tmp_path / name).write_text("x")
        os.utime(tmp_path / name, (1, 1))
    link, reader = tmp_path / "link", Reader()
    link.symlink_to("one")
    await reloader.add("a", [link], reader)
    (tmp_path / "next").symlink_to("two")
    (tmp_path / "next").rename(link)
    await reloader.look()
    assert reader.calls == 2


@pytest.mark.logs_errors
async def test_a_failure_is_told_once_per_change(
    reloader: Reloader, failures: list[str], tmp_path: Path
) -> None:
    file, reader = tmp_path / "a", Reader()
    file.write_text("1")
    await reloader.add("keys", [file], reader)
    reader.broken = True
    file.unlink()
    await reloader.look()
    await reloader.look()
    assert failures == ["keys"]
    assert reader.calls == 2


async def test_a_failure_at_the_start_is_raised(reloader: Reloader) -> None:
    reader = Reader()
    reader.broken = True
    with pytest.raises(SettingsError):
        await reloader.add("a", [], reader)


async def test_asking_reads_everything_without_waiting_for_the_next_look(
    reloader: Reloader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("proxy.reload.PERIOD", 3600)
    reader = Reader()
    await reloader.add("a", [], reader)
    reader.called.clear()
    task = asyncio.create_task(reloader.run())
    reloader.ask()
    async with asyncio.timeout(5):
        await reader.called.wait()
    task.cancel()
    assert reader.calls == 2


async def test_it_looks_by_itself(
    reloader: Reloader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("proxy.reload.PERIOD", 0.01)
    file, reader = tmp_path / "a", Reader()
    await reloader.add("a", [file], reader)
    reader.called.clear()
    task = asyncio.create_task(reloader.run())
    file.write_text("new")
    async with asyncio.timeout(5):
        await reader.called.wait()
    task.cancel()
