"""Trying a video out in a child process: whatever becomes of the child is an answer."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from proxy.engines import video_check
from proxy.engines.video_check import check_video
from proxy.media.content import Content
from tests.support import eventually
from translators.media_urls import MediaRefused

READ = "import sys; data = sys.stdin.buffer.read(); "


@pytest.fixture
def child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], object]:
    """Puts a script in the place of the one that decodes."""
    script = tmp_path / "child.py"
    monkeypatch.setattr(video_check, "_CHILD", script)
    return script.write_text


def video(size: int = 3_000_000) -> Content:
    return Content(size, memory=bytes(size))


async def test_a_child_that_is_content_is_believed(child: Callable[[str], object]) -> None:
    child(READ + "assert len(data) == 3_000_000; print(100); print(8)")
    assert await check_video(video(), 100) == (100, 8)


async def test_the_limit_is_handed_over_and_kept(child: Callable[[str], object]) -> None:
    child(READ + "print(sys.argv[1])")
    await check_video(video(), 7)
    for said in ("101", "0"):
        child(READ + f"print({said})")
        with pytest.raises(MediaRefused, match=f"frames of {said} pixels, from 1 to 100"):
            await check_video(video(), 100)


@pytest.mark.parametrize(
    "script",
    [
        READ + "sys.exit(1)",
        READ + "print(100); sys.exit(1)",
        READ + "import os; print(100, flush=True); os.abort()",
        READ + "import os; os.kill(os.getpid(), 9)",
        READ + "raise SystemExit('no')",
        READ,
        READ + "print('nonsense')",
        READ + "print(-5)",
        READ + "print(100); print('many')",
        "import sys; sys.exit(1)",
        "import os; os.abort()",
        "import os; os.close(0); os.close(1)",
        "this is no Python",
    ],
)
async def test_any_other_end_is_a_refusal(child: Callable[[str], object], script: str) -> None:
    child(script)
    with pytest.raises(MediaRefused, match="cannot be decoded as video"):
        await check_video(video(), 100)


async def test_a_child_that_takes_too_long_is_ended(
    child: Callable[[str], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    child(READ + "import time; time.sleep(60)")
    monkeypatch.setattr(video_check, "_SECONDS", 0.3)
    with pytest.raises(MediaRefused, match="too long"):
        await check_video(video(), 100)


async def test_a_child_is_ended_with_its_request(
    child: Callable[[str], object], tmp_path: Path
) -> None:
    place = tmp_path / "pid"
    child(
        f"import os, time; from pathlib import Path; new = Path({str(tmp_path / 'new')!r});"
        f"new.write_text(str(os.getpid())); new.rename({str(place)!r}); time.sleep(60)"
    )
    task = asyncio.create_task(check_video(video(), 100))
    await eventually(place.exists)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    command = Path("/proc") / place.read_text() / "cmdline"
    # Another process may have its id by now.
    assert not command.exists() or str(tmp_path).encode() not in command.read_bytes()


async def test_the_real_child_survives_what_no_decoder_takes() -> None:
    pytest.importorskip("cv2", reason="no OpenCV here")
    for data in (b"", b"\0\0\0\x18ftypisom" + bytes(300), os.urandom(1000)):
        with pytest.raises(MediaRefused, match="cannot be decoded as video"):
            await check_video(Content(len(data), memory=data), 100)
