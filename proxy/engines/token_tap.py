"""Tokens read where vLLM unpacks them: each with its own step's stamps, never merged.

`AsyncLLM.generate()` merges the outputs of several steps when its reader lags,
and keeps neither each token's time nor the waits after a preemption. The tap
stands in front of the engine's `OutputProcessor`, on the instance: it notes the
raw outputs of a step and hands them on when the same step's scheduler statistics
arrive, a moment later in the same task. The first and the last output of a
request, and everything that is not ours, vLLM processes as ever; from those
between only its statistics are taken, since nobody would read the rest.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

from proxy.engines.step_statistics import count_decoded
from proxy.engines.token_run import Logprobs, TokenRun
from proxy.logs import PRIVATE
from translators.errors import IncompleteGeneration
from translators.tokens import FinishReason

log = logging.getLogger(__name__)

_LOST: Final = "a token could not be handed on: %s"


class StepEvent(Protocol):
    """vLLM's EngineCoreEvent; `timestamp` is the engine's monotonic clock, seconds."""

    type: Any
    timestamp: float


class StepOutput(Protocol):
    """vLLM's EngineCoreOutput: what one request got from one step."""

    request_id: str
    new_token_ids: list[int]
    new_logprobs: Any
    finish_reason: Any
    events: list[StepEvent] | None


class Vocabulary(Protocol):
    """How this vLLM spells what the tap has to understand; settled once at start."""

    queued: Any
    scheduled: Any
    preempted: Any
    error: Any

    def reason(self, finish_reason: Any) -> FinishReason | None: ...


class TokenTap:
    """The tap of one engine. `runs` maps our request ids to their runs."""

    def __init__(
        self,
        processor: Any,
        vocabulary: Vocabulary,
        on_death: Callable[[str], None],
        *,
        counts_alike: bool = False,
    ) -> None:
        """`counts_alike`: `count_decoded` may take the place of vLLM's own counting."""
        self.runs: dict[str, TokenRun] = {}
        self._states = processor.request_states
        self._count = processor._update_stats_from_output
        self._counts_alike = counts_alike
        self._vocabulary = vocabulary
        self._on_death = on_death
        self._step: list[tuple[TokenRun, StepOutput, float]] = []
        self._process = processor.process_outputs
        self._propagate = processor.propagate_error
        processor.process_outputs = self._process_outputs
        processor.propagate_error = self._propagate_error

    def _process_outputs(
        self,
        outputs: Sequence[StepOutput],
        timestamp: float | None = None,
        iteration_stats: Any = None,
        **kw: Any,
    ) -> Any:
        runs, states, step = self.runs, self._states, self._step
        rest: list[StepOutput] = []
        decoded: list[tuple[Any, StepOutput]] = []
        at = timestamp or 0.0
        for output in outputs:
            state = states.get(output.request_id)
            run = None if state is None else runs.get(state.external_req_id)
            if run is None:
                rest.append(output)
                continue
            step.append((run, output, at))
            if state.is_prefilling or output.finish_reason is not None:
                rest.append(output)
            elif iteration_stats is not None:
                if output.events is None and self._counts_alike:
                    decoded.append((state, output))
                else:
                    self._count(state, output, timestamp, iteration_stats)
        if decoded:
            count_decoded(decoded, at, iteration_stats)
        return self._process(rest, timestamp, iteration_stats, **kw)

    def step_done(self, batch_size: int) -> None:
        """The statistics of the step have arrived: hand its tokens on."""
        step, self._step = self._step, []
        for run, output, at in step:
            try:
                ids = output.new_token_ids
                if (
                    len(ids) == 1
                    and output.finish_reason is None
                    and output.events is None
                    and output.new_logprobs is None
                ):
                    run.token(ids[0], at, batch_size, None)
                else:
                    self._feed(run, output, at, batch_size)
            except Exception as error:
                # This runs in vLLM's own task, whose end is the end of the engine.
                log.exception(_LOST, type(error).__name__, extra=PRIVATE)
                run.stream.fail(IncompleteGeneration("the engine failed on this request"))

    def _feed(self, run: TokenRun, output: StepOutput, at: float, batch_size: int) -> None:
        if output.events:
            self._note(run, output.events)
        reason = None
        if output.finish_reason is not None:
            self.runs.pop(run.request_id, None)
            if output.finish_reason == self._vocabulary.error:
                run.stream.fail(IncompleteGeneration("the engine failed on this request"))
                return
            reason = self._vocabulary.reason(output.finish_reason)
        if output.new_token_ids:
            logprobs = output.new_logprobs
            rows = None if logprobs is None else logprob_rows(logprobs)
            run.tokens(output.new_token_ids, at, batch_size, reason, rows)
        elif reason is not None:
            run.stream.stop()

    def _note(self, run: TokenRun, events: list[StepEvent]) -> None:
        words = self._vocabulary
        for event in events:
            if event.type == words.scheduled:
                run.scheduled(event.timestamp)
            elif event.type == words.queued:
                run.queued(event.timestamp)
            elif event.type == words.preempted:
                run.preempted(event.timestamp)

    def _propagate_error(self, error: Exception) -> None:
        self._propagate(error)
        # Death is told first: nothing is aborted in an engine that is gone.
        self._on_death(type(error).__name__)
        for run in list(self.runs.values()):
            run.stream.fail(IncompleteGeneration("the engine died"))


def logprob_rows(lists: Any) -> list[Logprobs]:
    """vLLM's LogprobsLists, token by token: in each row the token itself comes first."""
    return [
        Logprobs(values[0], list(zip(ids[1:], values[1:], strict=True)))
        for ids, values in zip(
            lists.logprob_token_ids.tolist(), lists.logprobs.tolist(), strict=True
        )
    ]
