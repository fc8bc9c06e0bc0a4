"""The table, the JSON and the chart."""

from __future__ import annotations

import json
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_BAR: Final = 28
_WIDTH: Final = 760
_LEFT: Final = 270
_SCALE: Final = 240
"""Pixels of a bar that uses just its target."""
_LONGEST: Final = 1.7
_NOISE: Final = 1.2
"""A ratio may be this much worse than its target before the smoke run fails."""


@dataclass(frozen=True)
class Row:
    """One figure of docs/performance.md: several samples of a ratio or of a plain value."""

    name: str
    what: str
    samples: tuple[float, ...]
    target: float
    stretch: float | None
    unit: str
    higher_is_better: bool = False

    @property
    def median(self) -> float:
        return statistics.median(self.samples)

    def reaches(self, goal: float, noise: float = 1.0) -> bool:
        """Whether the median is as good as `goal`, give or take the noise factor."""
        if self.higher_is_better:
            return self.median * noise >= goal
        return self.median <= goal * noise

    @property
    def within_noise(self) -> bool:
        return self.reaches(self.target, _NOISE)


def table(rows: list[Row]) -> str:
    """The rows as a Markdown table."""
    lines = [
        "| # | measure | median | spread | target | stretch |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    return "\n".join([*lines, *map(_line, rows)]) + "\n"


def _line(row: Row) -> str:
    spread = f"{min(row.samples):.3g} to {max(row.samples):.3g} (n={len(row.samples)})"
    cells = [
        row.name,
        row.what,
        f"{row.median:.3g} {row.unit}",
        spread,
        _goal(row, row.target),
        "" if row.stretch is None else _goal(row, row.stretch),
    ]
    return "| " + " | ".join(cells) + " |"


def _goal(row: Row, goal: float) -> str:
    sign = "≥" if row.higher_is_better else "≤"
    return f"{sign} {goal:g} {row.unit}: {'met' if row.reaches(goal) else 'not met'}"


def write(rows: list[Row], folder: Path, command: str) -> None:
    """Write bench.json and bench.svg."""
    folder.mkdir(parents=True, exist_ok=True)
    content = {"command": command, "rows": [{**row.__dict__, "median": row.median} for row in rows]}
    (folder / "bench.json").write_text(json.dumps(content, indent=1) + "\n", "utf-8")
    (folder / "bench.svg").write_text(chart(rows), "utf-8")


def chart(rows: list[Row]) -> str:
    """Bars: how much of its target each figure uses; 1 is the target, shorter is better."""
    height = _BAR * len(rows) + 50
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}" '
        'font-family="sans-serif" font-size="12">'
    )
    line = _LEFT + _SCALE
    return "\n".join(
        [
            head,
            f'<rect width="{_WIDTH}" height="{height}" fill="white"/>',
            '<text x="10" y="18">Share of the target in use (1 is the target)</text>',
            *(_bar(row, 30 + index * _BAR) for index, row in enumerate(rows)),
            f'<line x1="{line}" y1="25" x2="{line}" y2="{height - 15}" stroke="#444"/>',
            "</svg>\n",
        ]
    )


def _bar(row: Row, top: int) -> str:
    share = row.target / row.median if row.higher_is_better else row.median / row.target
    width = max(min(share, _LONGEST), 0.0) * _SCALE
    color = "#2b7a4b" if share <= 1 else "#b3541e"
    text = top + 15
    return (
        f'<text x="10" y="{text}">{row.name} {_short(row.what)}</text>'
        f'<rect x="{_LEFT}" y="{top}" width="{width:.1f}" height="20" fill="{color}"/>'
        f'<text x="{_LEFT + 5 + width:.1f}" y="{text}">{row.median:.3g} {row.unit}</text>'
    )


def _short(text: str) -> str:
    return (text if len(text) <= 36 else text[:35] + "…").replace("&", "+").replace("<", "")
