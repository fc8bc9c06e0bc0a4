"""Tokens from vLLM's own collectors: the public way, where outputs may be merged.

A merged output says when its first and its last token came at best; the tokens
between are spread evenly over that time. The sum is right, and none is lost.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from proxy.engines.token_run import Logprobs, TokenRun
from translators.errors import IncompleteGeneration
from translators.tokens import FinishReason


class Reasons(Protocol):
    """How this vLLM spells a finish reason."""

    def reason(self, finish_reason: Any) -> FinishReason | None: ...


class CollectorReader:
    """Reads the outputs of one request, which asked for the `top` likeliest tokens."""

    def __init__(self, run: TokenRun, reasons: Reasons, *, top: int = 0) -> None:
        self._run = run
        self._reasons = reasons
        self._top = top
        self._previous: float | None = None

    def read(self, output: Any, batch_size: int) -> None:
        """One RequestOutput. Its stamps change with every step: they are read at once."""
        stamps, completion = output.metrics, output.outputs[0]
        ids = list(completion.token_ids)
        if str(completion.finish_reason) == "error":
            self._run.stream.fail(IncompleteGeneration("the engine failed on this request"))
            return
        reason = self._reasons.reason(completion.finish_reason)
        if not ids:
            if reason is not None:
                self._run.stream.stop()
            return
        first = self._begin(stamps) if self._previous is None else None
        times = spread(len(ids), first, self._previous, stamps.last_token_ts)
        self._previous = stamps.last_token_ts
        logprobs = self._rows(ids, completion.logprobs)
        for token_id, at, row in zip(ids[:-1], times, logprobs, strict=False):
            self._run.token(token_id, at, batch_size, None, row)
        self._run.token(ids[-1], times[-1], batch_size, reason, logprobs[-1])

    def _begin(self, stamps: Any) -> float:
        if stamps.queued_ts:
            self._run.queued(stamps.queued_ts)
            self._run.scheduled(stamps.scheduled_ts)
        return float(stamps.first_token_ts or stamps.last_token_ts)

    def _rows(
        self, ids: list[int], positions: Sequence[Mapping[int, Any]] | None
    ) -> list[Logprobs | None]:
        """vLLM's dictionaries of log probabilities, one per token; none where not asked for."""
        if positions is None:
            return [None] * len(ids)
        return [self._row(*pair) for pair in zip(ids, positions, strict=True)]

    def _row(self, token_id: int, position: Mapping[int, Any]) -> Logprobs:
        # The token itself stands among the likeliest only when it is one of them.
        ranked = sorted(((other, entry.logprob) for other, entry in position.items()), key=_rank)
        return Logprobs(position[token_id].logprob, ranked[: self._top])


def _rank(item: tuple[int, float]) -> float:
    return -item[1]


def spread(count: int, first: float | None, previous: float | None, last: float) -> list[float]:
    """Times of `count` tokens of which the last came at `last`.

    `first` is the known time of the first one, if it is the request's first;
    otherwise the tokens follow the one at `previous`. They never go back in time.
    """
    if first is not None:
        begin = min(first, last)
        step = (last - begin) / (count - 1) if count > 1 else 0.0
        return [begin + step * index for index in range(count - 1)] + [last]
    begin = last if previous is None else min(previous, last)
    step = (last - begin) / count
    return [begin + step * (index + 1) for index in range(count - 1)] + [last]
