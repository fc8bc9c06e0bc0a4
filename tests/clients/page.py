"""What the answer to the request of MindIE's API page must look like."""

from __future__ import annotations

from typing import Any

FRAME_KEYS = [
    "id",
    "model_name",
    "model_version",
    "text_output",
    "details",
    "prefill_time",
    "decode_time",
]


def check_frames(frames: list[dict[str, Any]]) -> None:
    """Five frames in MindIE's shape, the last one with the reason."""
    assert len(frames) == 5
    assert all(list(frame) == FRAME_KEYS for frame in frames)
    assert [frame["details"]["generated_tokens"] for frame in frames] == [1, 2, 3, 4, 5]
    assert frames[-1]["details"]["finish_reason"] == "length"
    assert frames[0]["prefill_time"] > 0
    assert all(frame["decode_time"] > 0 for frame in frames[1:])
    assert "".join(frame["text_output"] for frame in frames).strip()
