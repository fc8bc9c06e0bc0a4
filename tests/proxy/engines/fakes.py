"""What the engine modules see of vLLM and of a tokenizer, without either."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from proxy.engines.stream import TokenStream
from proxy.engines.token_run import TokenRun
from translators.tokens import FinishReason, Token


class Letters:
    """Token 1 is "a", 2 is "b" ...; 0 is half a character; a negative one cannot be decoded."""

    def __init__(self) -> None:
        self._half = False

    def push(self, token_id: int) -> str:
        if token_id < 0:
            raise KeyError(token_id)
        self._half = token_id == 0
        return chr(ord("a") + token_id - 1) if token_id else ""

    def flush(self) -> str:
        return "\ufffd" if self._half else ""


_REASONS = {
    "stop": FinishReason.END,
    "length": FinishReason.LENGTH,
    "abort": FinishReason.STOPPED,
}


class Vocabulary:
    """How this vLLM spells its events and reasons."""

    queued, scheduled, preempted, error = "QUEUED", "SCHEDULED", "PREEMPTED", "error"

    def reason(self, finish_reason: Any) -> FinishReason | None:
        if finish_reason is None:
            return None
        return _REASONS.get(finish_reason, FinishReason.UNKNOWN)


def event(kind: str, timestamp: float) -> SimpleNamespace:
    """vLLM's EngineCoreEvent."""
    return SimpleNamespace(type=kind, timestamp=timestamp)


def step_output(
    request_id: str,
    ids: Sequence[int] = (),
    *,
    finish: str | None = None,
    events: Sequence[SimpleNamespace] | None = None,
    logprobs: Any = None,
) -> Any:
    """vLLM's EngineCoreOutput."""
    return SimpleNamespace(
        request_id=request_id,
        new_token_ids=list(ids),
        new_logprobs=logprobs,
        finish_reason=finish,
        events=events,
    )


@dataclass
class Processor:
    """vLLM's OutputProcessor: what it was given, and the requests it knows."""

    request_states: dict[str, Any] = field(default_factory=dict)
    processed: list[tuple[Any, ...]] = field(default_factory=list)
    counted: list[tuple[Any, ...]] = field(default_factory=list)
    propagated: list[Exception] = field(default_factory=list)

    def process_outputs(self, *args: Any, **kwargs: Any) -> str:
        self.processed.append((*args, kwargs))
        return "vLLM's own answer"

    def _update_stats_from_output(self, *args: Any) -> None:
        self.counted.append(args)

    def propagate_error(self, error: Exception) -> None:
        self.propagated.append(error)


@dataclass
class Reading:
    """A run and what came out of it."""

    run: TokenRun
    cancelled: list[str]

    async def tokens(self) -> list[Token]:
        """All tokens until the end; raises what the stream raises."""
        return [token async for tokens in self.run.stream for token in tokens]


def reading(request_id: str = "r1") -> Reading:
    """A run over `Letters`. Must be called in a running loop."""
    cancelled: list[str] = []
    stream = TokenStream(lambda: cancelled.append(request_id))
    return Reading(TokenRun(request_id, stream, Letters(), piece), cancelled)


def piece(token_id: int) -> str:
    """The text of a token by itself."""
    return f"<{token_id}>"
