"""Log probabilities, from vLLM's two shapes to `Token`: the same on both paths."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np

from proxy.engines.collector import CollectorReader
from proxy.engines.token_tap import logprob_rows
from tests.proxy.engines.fakes import Vocabulary, reading
from translators.tokens import Alternative, FinishReason, Token

# Of the second token vLLM shows one more: it is not among the two likeliest.
IDS = [5, 9]
ROWS = SimpleNamespace(
    logprob_token_ids=np.array([[5, 5, 7], [9, 3, 4]]),
    logprobs=np.array([[-0.5, -0.5, -1.5], [-4.0, -0.25, -2.0]]),
)
POSITIONS = [
    {5: SimpleNamespace(logprob=-0.5), 7: SimpleNamespace(logprob=-1.5)},
    {9: SimpleNamespace(logprob=-4.0), 3: SimpleNamespace(logprob=-0.25)}
    | {4: SimpleNamespace(logprob=-2.0)},
]
EXPECTED = [
    (5, -0.5, (Alternative(5, "<5>", -0.5), Alternative(7, "<7>", -1.5))),
    (9, -4.0, (Alternative(3, "<3>", -0.25), Alternative(4, "<4>", -2.0))),
]


def shown(tokens: list[Token]) -> list[tuple[int, float | None, tuple[Alternative, ...]]]:
    return [(token.id, token.logprob, token.top) for token in tokens]


async def test_the_tap_reads_rows_of_arrays() -> None:
    read = reading()
    read.run.tokens(IDS, 1.0, 1, FinishReason.LENGTH, logprob_rows(ROWS))
    assert shown(await read.tokens()) == EXPECTED


async def test_the_collector_reads_dictionaries() -> None:
    read = reading()
    stamps = SimpleNamespace(queued_ts=0.0, scheduled_ts=0.0, first_token_ts=0.5, last_token_ts=1.0)
    completion = SimpleNamespace(token_ids=IDS, finish_reason="length", logprobs=POSITIONS)
    output = SimpleNamespace(metrics=stamps, outputs=[completion])
    CollectorReader(read.run, Vocabulary(), top=2).read(output, 1)
    assert shown(await read.tokens()) == EXPECTED


async def test_without_a_wish_for_them_there_are_none() -> None:
    read = reading()
    read.run.tokens([1, 2], 1.0, 1, FinishReason.LENGTH)
    assert shown(await read.tokens()) == [(1, None, ()), (2, None, ())]
