"""What an engine hands over: tokens with their text and their times."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple


class FinishReason(Enum):
    """Why a sequence ended, in engine-neutral terms."""

    END = "end"
    """End token, or a stop condition of the model."""
    LENGTH = "length"
    """max_new_tokens, max_iter_times, or the context is full."""
    STOPPED = "stopped"
    """Cancelled, stopped by stopInfer, or aborted by the engine."""
    UNKNOWN = "unknown"
    """An end that the contract has no word for."""


class Finish(NamedTuple):
    """The end of a sequence."""

    reason: FinishReason
    tail: str = ""
    """What was held back as half a character, decoded with U+FFFD."""


class Alternative(NamedTuple):
    """A token that might have been chosen in the place of one that was."""

    id: int
    text: str
    logprob: float


class Token(NamedTuple):
    """One generated token. A NamedTuple, because one is made for every token."""

    id: int
    text: str
    """The new text; empty for half a character, a special or an end token."""
    latency: float
    """Seconds since the previous token; for the first one, since acceptance."""
    waited: float
    """Seconds in the engine's queue before the step that made this token."""
    batch_size: int
    """Sequences that ran in the engine step that made this token."""
    finish: Finish | None = None
    """Set on the last token only."""
    logprob: float | None = None
    """Natural logarithm of its probability, when asked for and when the engine tells."""
    top: tuple[Alternative, ...] = ()
    """The likeliest tokens at this place, best first, when asked for."""
