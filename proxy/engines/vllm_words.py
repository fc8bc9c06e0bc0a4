"""What holds for vLLM in this process and over HTTP alike: its words and its limits."""

from __future__ import annotations

from typing import Any, Final

from translators.tokens import FinishReason

REASONS: Final = {
    "stop": FinishReason.END,
    "length": FinishReason.LENGTH,
    "abort": FinishReason.STOPPED,
}
COOLEST: Final = 0.01
"""vLLM raises smaller temperatures to this one, with a line in its log for every request."""
HOTTEST_OF_NEW: Final = 2.0
"""0.32 refuses higher temperatures, 0.23 none."""
FAILED: Final = "error"
"""Not an end but a failure inside the engine."""


def reason_of(word: Any) -> FinishReason | None:
    """The neutral reason for vLLM's word or enum member; None for None."""
    return None if word is None else REASONS.get(str(word), FinishReason.UNKNOWN)


def usable_temperature(wanted: float, hottest: float) -> float:
    """The nearest that vLLM samples with: the contract has no upper limit (§3)."""
    return min(max(wanted, COOLEST), hottest) if wanted else 0.0
