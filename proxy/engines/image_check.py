"""Whether an image can be decoded to its end: what vLLM would let pass is found out first.

To turn a picture as its EXIF data say, vLLM decodes it once with all errors
suppressed. A PNG with a damaged middle fails there unseen, and what Pillow has of
it then, often all black, would be shown to the model as the client's image.
"""

from __future__ import annotations

import importlib
import io
from typing import Final

_PILLOW: Final = {"jpg": "JPEG", "png": "PNG"}
"""Pillow's names of the formats that are accepted."""


def check_image(data: bytes, name: str, max_pixels: int) -> None:
    """Raise what Pillow raises unless this is a whole image of the format `name`.

    ValueError when Pillow, which vLLM decodes with, would make more of it than it may be.

    Blocks: call it in a thread. Other formats, which Pillow would try on a file
    that only begins like this one, are left out.
    """
    image = importlib.import_module("PIL.Image")
    with image.open(io.BytesIO(data), formats=(_PILLOW[name],)) as opened:
        if opened.width * opened.height > max_pixels:
            raise ValueError
        # A JPEG that fails does so the second time as well: vLLM's own decoding tells.
        if name == "png":
            opened.load()
