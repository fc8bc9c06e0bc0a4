"""How many frames of a video are held at a time: limited by their pixels, all together.

Which frames are taken is up to vLLM's loader of the model: 32, or two a second up
to 768, or what the operator says. So it is asked, before it decodes any.
"""

from __future__ import annotations

import copy
from typing import Any

from translators.media_bombs import FULL_IMAGES
from translators.media_urls import MediaRefused


def limit_frames(loader: Any, pixels: int, max_pixels: int) -> None:
    """Have `loader`, of one video, raise MediaRefused rather than take too many frames.

    A frame has `pixels`; `max_pixels` is the limit of a single one.
    """
    allowed = FULL_IMAGES * max_pixels
    # It is an object, but has nothing that is not its class's.
    loader.video_loader = copy.copy(loader.video_loader)
    kind = type(loader.video_loader)

    class Limited(kind):  # type: ignore[misc, valid-type]
        @classmethod
        def compute_frames_index_to_sample(cls, *arguments: Any, **options: Any) -> Any:
            chosen = super().compute_frames_index_to_sample(*arguments, **options)
            if len(chosen) * pixels > allowed:
                raise MediaRefused(
                    f"has {len(chosen)} frames of {pixels} pixels to be shown, "
                    f"{allowed} pixels are allowed in all"
                )
            return chosen

    loader.video_loader.__class__ = Limited
