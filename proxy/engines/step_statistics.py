"""vLLM's own statistics of tokens, kept step by step instead of token by token.

Its metrics stay what they are, to the last count; only the way there is shorter:
`count_decoded` does in one loop what vLLM does in three calls and a look at the
environment per token, and `StepHistogram` puts the times of a step into a
histogram at once. Whether this vLLM counts like that is tried out at start
(`counts_alike`, `gather`); where it does not, it counts in its own way.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any, Final, Protocol

from prometheus_client import Histogram

log = logging.getLogger(__name__)


class Decoded(Protocol):
    """What vLLM got for a request that is past its first token (an EngineCoreOutput)."""

    new_token_ids: list[int]


DecodedStep = Iterable[tuple[Any, Decoded]]
"""vLLM's RequestStates and what a step gave them."""


def count_decoded(step: DecodedStep, timestamp: float, iteration: Any) -> None:
    """Note a step without events in vLLM's statistics of the requests and of the iteration."""
    latencies = iteration.inter_token_latencies_iter
    generated = 0
    for state, output in step:
        stats = state.stats
        tokens = len(output.new_token_ids)
        generated += tokens
        stats.num_generation_tokens += tokens
        latencies.append(timestamp - stats.last_token_ts)
        stats.last_token_ts = timestamp
    iteration.num_generation_tokens += generated


class _Plain:
    """An output that has no more to it than `count_decoded` looks at."""

    __slots__ = ("events", "new_token_ids")

    def __init__(self, tokens: int) -> None:
        self.new_token_ids = list(range(tokens))
        self.events = None


def counts_alike(
    count: Callable[[Any, Any, float, Any], None],
    new_iteration: Callable[[], Any],
    new_stats: Callable[[], Any],
) -> bool:
    """Whether vLLM's `count`, tried out on two steps, looks at and notes what we do.

    It may not, in another version, or when it is told to count more (NaNs in logits).
    """
    theirs, ours = (
        (new_iteration(), SimpleNamespace(stats=new_stats(), is_prefilling=False, lora_name=None))
        for _ in range(2)
    )
    try:
        for tokens, at in ((1, 2.0), (3, 2.5)):
            output: Any = _Plain(tokens)
            count(theirs[1], output, at, theirs[0])
            count_decoded([(ours[1], output)], at, ours[0])
    except Exception as error:
        log.info("vLLM counts tokens in its own way: %s", type(error).__name__)
        return False
    return _noted(*theirs) == _noted(*ours)


def _noted(iteration: Any, state: Any) -> tuple[dict[str, object], dict[str, object]]:
    """All numbers and lists of both, but the time when the iteration began."""
    plain = {
        name: value for name, value in vars(iteration).items() if name != "iteration_timestamp"
    }
    return {name: _comparable(value) for name, value in plain.items()}, dict(vars(state.stats))


def _comparable(value: object) -> object:
    return vars(value) if hasattr(value, "__dict__") else value


class StepHistogram:
    """Stands in for a histogram of prometheus-client that gets a value for each token.

    The values of a step are mostly the same: each is looked up once. They are in
    the histogram after `flush`.
    """

    __slots__ = ("_bounds", "_buckets", "_sum", "_values", "observe")

    def __init__(self, histogram: Histogram) -> None:
        self._sum, self._buckets, self._bounds = (getattr(histogram, name) for name in _INSIDE)
        self._values: list[float] = []
        self.observe: Callable[[float], None] = self._values.append
        """Note a value."""

    def flush(self) -> None:
        """Count what was noted."""
        if not self._values:
            return
        noted = Counter(self._values)
        self._values.clear()
        for value, times in noted.items():
            self._sum.inc(value * times)
            self._buckets[bisect_left(self._bounds, value)].inc(times)


_INSIDE: Final = ("_sum", "_buckets", "_upper_bounds")
"""What we use of prometheus-client's histogram, which has no way to observe a value often."""


def gather(stat_loggers: Iterable[Any], attribute: str) -> None:
    """Let the loggers that keep a histogram per engine under `attribute` count it by steps."""
    for logger in stat_loggers:
        histograms = getattr(logger, attribute, None)
        if not isinstance(histograms, dict) or not all(map(_known, histograms.values())):
            continue
        gathered = {engine: StepHistogram(each) for engine, each in histograms.items()}
        setattr(logger, attribute, gathered)
        logger.record = _flushed(logger.record, gathered.values())


def _known(histogram: object) -> bool:
    return all(hasattr(histogram, name) for name in _INSIDE)


def _flushed(
    record: Callable[..., None], histograms: Iterable[StepHistogram]
) -> Callable[..., None]:
    """`record`, after which nothing stays unseen."""

    def recorded(*args: Any, **kw: Any) -> None:
        try:
            record(*args, **kw)
        finally:
            for histogram in histograms:
                histogram.flush()

    return recorded
