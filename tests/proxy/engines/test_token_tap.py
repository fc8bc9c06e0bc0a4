"""The tap in front of vLLM's output processor, with a processor of our own."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from proxy.engines.token_tap import TokenTap
from tests.proxy.engines.fakes import (
    Processor,
    Reading,
    Vocabulary,
    event,
    reading,
    step_output,
)
from translators.errors import IncompleteGeneration
from translators.tokens import Finish, FinishReason, Token


class Tapped:
    """A tapped processor with runs; vLLM's internal id of request `x` is `core-x`."""

    def __init__(self, *names: str) -> None:
        self.deaths: list[str] = []
        self.processor: Any = Processor()
        self.tap = TokenTap(self.processor, Vocabulary(), self.deaths.append)
        self.runs: dict[str, Reading] = {}
        for name in names:
            self.runs[name] = reading(name)
            self.tap.runs[name] = self.runs[name].run
            self.know(name)

    def know(self, name: str) -> None:
        state = SimpleNamespace(external_req_id=name, is_prefilling=True)
        self.processor.request_states[f"core-{name}"] = state

    def step(self, *outputs: Any, at: float | None, batch_size: int = 1) -> None:
        self.processor.process_outputs(list(outputs), at, "statistics")
        self.tap.step_done(batch_size)


async def test_each_token_has_the_stamp_and_the_batch_of_its_step() -> None:
    tapped = Tapped("r")
    tapped.step(
        step_output("core-r", [1], events=[event("QUEUED", 1.0), event("SCHEDULED", 1.5)]),
        at=2.0,
        batch_size=7,
    )
    tapped.step(step_output("core-r", [2], finish="length"), at=2.25, batch_size=6)
    assert await tapped.runs["r"].tokens() == [
        Token(1, "a", 1.0, 0.5, 7),
        Token(2, "b", 0.25, 0.0, 6, Finish(FinishReason.LENGTH)),
    ]


async def test_tokens_wait_for_the_statistics_of_their_step() -> None:
    tapped = Tapped("r")
    tapped.processor.process_outputs([step_output("core-r", [1])], 1.0, None)
    assert tapped.runs["r"].run.stream.idle
    tapped.tap.step_done(1)
    assert not tapped.runs["r"].run.stream.idle


async def test_a_step_in_several_slices_is_one_step() -> None:
    tapped = Tapped("r", "s")
    tapped.processor.process_outputs([step_output("core-r", [1], finish="stop")], 1.0, None)
    tapped.processor.process_outputs([step_output("core-s", [2], finish="length")], 1.0, None)
    tapped.tap.step_done(2)
    for name in ("r", "s"):
        assert [token.batch_size for token in await tapped.runs[name].tokens()] == [2]


async def test_vllm_gets_the_first_and_the_last_output_and_what_is_not_ours() -> None:
    tapped = Tapped("r")
    tapped.know("of another caller")
    other = step_output("core-of another caller", [5])
    first, middle = step_output("core-r", [1]), step_output("core-r", [2])
    last = step_output("core-r", [3], finish="stop")
    state = tapped.processor.request_states["core-r"]

    answer = tapped.processor.process_outputs([first, other], 1.0, "one", weight_version=3)
    assert answer == "vLLM's own answer"
    state.is_prefilling = False
    tapped.processor.process_outputs([other, middle], 2.0, "two")
    tapped.processor.process_outputs([last], 3.0, "three")

    assert tapped.processor.processed == [
        ([first, other], 1.0, "one", {"weight_version": 3}),
        ([other], 2.0, "two", {}),
        ([last], 3.0, "three", {}),
    ]
    assert tapped.processor.counted == [(state, middle, 2.0, "two")]


async def test_the_wait_after_a_preemption_is_seen() -> None:
    tapped = Tapped("r")
    tapped.step(
        step_output("core-r", [1], events=[event("QUEUED", 0.0), event("SCHEDULED", 0.0)]), at=1.0
    )
    tapped.step(
        step_output(
            "core-r",
            [2],
            finish="length",
            events=[event("PREEMPTED", 2.0), event("SCHEDULED", 5.0), event("OTHER", 9.0)],
        ),
        at=6.0,
    )
    assert [token.waited for token in await tapped.runs["r"].tokens()] == [0.0, 3.0]


async def test_events_without_tokens_are_kept() -> None:
    tapped = Tapped("r")
    tapped.step(step_output("core-r", events=[event("QUEUED", 1.0)]), at=1.0)
    tapped.step(step_output("core-r", [1], finish="stop"), at=4.0)
    assert [token.latency for token in await tapped.runs["r"].tokens()] == [3.0]


async def test_a_step_without_a_stamp_took_no_time() -> None:
    tapped = Tapped("r")
    tapped.step(step_output("core-r", [1], events=[event("QUEUED", 9.0)]), at=None)
    tapped.step(step_output("core-r", [2], finish="length"), at=10.0)
    assert [token.latency for token in await tapped.runs["r"].tokens()] == [0.0, 1.0]


async def test_requests_of_others_pass_by() -> None:
    tapped = Tapped("r")
    tapped.know("of another caller")
    tapped.step(step_output("core-of another caller", [5]), step_output("core-gone", [6]), at=1.0)
    tapped.step(step_output("core-r", [1], finish="stop"), at=2.0)
    assert [token.id for token in await tapped.runs["r"].tokens()] == [1]


@pytest.mark.parametrize(
    ("finish", "reason"),
    [
        ("stop", FinishReason.END),
        ("length", FinishReason.LENGTH),
        ("abort", FinishReason.STOPPED),
        ("repetition", FinishReason.UNKNOWN),
    ],
)
async def test_a_finished_run_is_forgotten(finish: str, reason: FinishReason) -> None:
    tapped = Tapped("r")
    tapped.step(step_output("core-r", [1], finish=finish), at=1.0)
    (token,) = await tapped.runs["r"].tokens()
    assert token.finish == Finish(reason)
    assert not tapped.tap.runs
    assert not tapped.runs["r"].cancelled


async def test_an_abort_without_a_token_ends_the_stream_normally() -> None:
    tapped = Tapped("r")
    tapped.step(step_output("core-r", finish="abort"), at=1.0)
    assert await tapped.runs["r"].tokens() == []
    assert not tapped.tap.runs


async def test_an_engine_error_breaks_this_request_only() -> None:
    tapped = Tapped("r", "s")
    tapped.step(
        step_output("core-r", finish="error"), step_output("core-s", [1], finish="stop"), at=1.0
    )
    with pytest.raises(IncompleteGeneration, match="failed on this request"):
        await tapped.runs["r"].tokens()
    assert len(await tapped.runs["s"].tokens()) == 1
    assert not tapped.deaths


@pytest.mark.logs_errors
async def test_a_token_that_cannot_be_decoded_breaks_this_request_only() -> None:
    tapped = Tapped("r", "s")
    tapped.step(step_output("core-r", [-1]), step_output("core-s", [1], finish="stop"), at=1.0)
    with pytest.raises(IncompleteGeneration, match="failed on this request"):
        await tapped.runs["r"].tokens()
    assert tapped.runs["r"].cancelled == ["r"]
    assert len(await tapped.runs["s"].tokens()) == 1


async def test_the_death_of_the_engine_breaks_every_run() -> None:
    tapped = Tapped("r", "s")
    error = RuntimeError("the engine's secrets")
    tapped.processor.propagate_error(error)
    assert tapped.processor.propagated == [error]
    for name in ("r", "s"):
        with pytest.raises(IncompleteGeneration, match="the engine died"):
            await tapped.runs[name].tokens()
    assert tapped.deaths == ["RuntimeError"]
