"""Decodes a video from standard input, in a process that may die of it.

Run by `proxy.engines.video_check` as a script: `video_child.py MAX_PIXELS SECONDS`.
It reads the video as vLLM's own loader does, with the same library, and writes
the pixels of a frame and, when they are within the limit, how many frames there
are. Exit codes: 0 it can be decoded, 1 it cannot. Imports
nothing of ours, so that it starts fast.
"""

from __future__ import annotations

import importlib
import io
import resource
import sys
from typing import Any, Final

_SHOWN: Final = 32
"""Frames that are converted to pictures, spread evenly: vLLM's own default number."""


def main() -> int:
    """Decode, within limits that the kernel keeps."""
    max_pixels, seconds = int(sys.argv[1]), int(sys.argv[2])
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    cv2 = importlib.import_module("cv2")
    capture = _opened(cv2, sys.stdin.buffer.read())
    if capture is None:
        return 1
    width, height = (int(capture.get(side)) for side in (3, 4))
    sys.stdout.write(f"{width * height}\n")
    sys.stdout.flush()
    if not 0 < width * height <= max_pixels:
        return 0
    frames = _frames(cv2, capture)
    sys.stdout.write(f"{frames}\n")
    return 0 if frames else 1


def _opened(cv2: Any, data: bytes) -> Any:
    registry = cv2.videoio_registry
    for backend in registry.getStreamBufferedBackends():
        if registry.hasBackend(backend):
            capture = cv2.VideoCapture(io.BytesIO(data), backend, [])
            if capture.isOpened():
                return capture
    return None


def _frames(cv2: Any, capture: Any) -> int:
    """How many frames there are, each decoded and some of them converted."""
    stated = max(int(capture.get(cv2.CAP_PROP_FRAME_COUNT)), 1)
    step = max(stated // _SHOWN, 1)
    count = 0
    while capture.grab():
        if count % step == 0:
            capture.retrieve()
        count += 1
    return count


if __name__ == "__main__":
    sys.exit(main())
