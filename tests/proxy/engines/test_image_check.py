"""A whole image passes, a damaged one does not, and neither does another format behind its name."""

from __future__ import annotations

import pytest

from proxy.engines.image_check import check_image
from tests.media_support import jpeg, png

pytest.importorskip("PIL", reason="Pillow comes with vLLM")


@pytest.mark.parametrize(("data", "name"), [(png(56, 56), "png"), (jpeg(56, 56), "jpg")])
def test_what_is_what_it_is_called_passes(data: bytes, name: str) -> None:
    check_image(data, name, 10**6)


@pytest.mark.parametrize("size", [20, 40, 45, 60])
def test_a_png_without_its_end_does_not(size: int) -> None:
    with pytest.raises((OSError, SyntaxError)):
        check_image(png(56, 56)[:size], "png", 10**6)


def test_damage_in_the_middle_is_seen() -> None:
    whole = png(56, 56)
    at = whole.index(b"IDAT") + 6
    with pytest.raises(OSError, match="broken"):
        check_image(whole[:at] + b"\xff" * 20 + whole[at + 20 :], "png", 10**6)


@pytest.mark.parametrize(("data", "name"), [(png(), "jpg"), (jpeg(), "png"), (b"PCD_", "jpg")])
def test_another_format_is_none(data: bytes, name: str) -> None:
    with pytest.raises(OSError, match="cannot identify"):
        check_image(data, name, 10**6)


@pytest.mark.parametrize(("data", "name"), [(png(56, 50), "png"), (jpeg(56, 50), "jpg")])
def test_what_pillow_would_make_more_of_is_refused(data: bytes, name: str) -> None:
    check_image(data, name, 2800)
    with pytest.raises(ValueError, match=r"^$"):
        check_image(data, name, 2799)
