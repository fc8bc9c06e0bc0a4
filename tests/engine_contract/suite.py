"""The contract between the gateway and an engine, as tests of a `case`."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from tests.engine_contract.case import Case, tokens_of
from tests.support import eventually
from translators.errors import GenerationError, IncompleteGeneration
from translators.media import TextPart
from translators.tokens import FinishReason

LONG = 400
"""Tokens of a generation that a test ends before it ends by itself."""


async def test_it_says_what_it_serves(case: Case) -> None:
    info = case.info
    assert info.names
    assert all(info.names)
    assert info.max_model_len > 0
    assert info.max_position_embeddings > 0
    assert info.vocab_size > 0
    assert info.max_num_seqs > 0
    assert case.engine.available


async def test_a_prompt_is_counted_the_same_every_time(case: Case) -> None:
    tokens = await case.engine.tokenize(case.text)
    assert tokens
    assert tokens == await case.engine.tokenize(case.text)
    assert len(await case.engine.tokenize(f"{case.text} {case.text}")) > len(tokens)


async def test_text_parts_are_one_prompt(case: Case) -> None:
    whole = await case.engine.prepare([TextPart(case.text), TextPart(" and so on")])
    assert len(whole.ids) == len(await case.engine.tokenize(f"{case.text} and so on"))


async def test_every_token_comes_once_and_the_last_one_ends_it(case: Case) -> None:
    tokens = await case.run(max_tokens=5)
    assert len(tokens) == 5
    assert all(token.finish is None for token in tokens[:-1])
    assert tokens[-1].finish is not None
    assert tokens[-1].finish.reason is FinishReason.LENGTH
    assert "".join(token.text for token in tokens)


async def test_one_token_is_a_generation(case: Case) -> None:
    (token,) = await case.run(max_tokens=1)
    assert token.finish is not None


async def test_times_and_sizes_are_never_negative(case: Case) -> None:
    for token in await case.run(max_tokens=5):
        assert token.latency >= 0
        assert token.waited >= 0
        assert token.batch_size >= 1


async def test_the_first_token_waits_no_longer_than_it_takes(case: Case) -> None:
    first, *_ = await case.run(max_tokens=2)
    assert first.latency > 0
    assert first.waited <= first.latency


async def test_greedy_is_the_same_every_time(case: Case) -> None:
    first, second = await case.run(max_tokens=8), await case.run(max_tokens=8)
    assert [(token.id, token.text) for token in first] == [
        (token.id, token.text) for token in second
    ]


async def test_a_seed_gives_the_same_text(case: Case) -> None:
    sampled = {"temperature": 1.0, "top_k": 50, "seed": -5, "max_tokens": 8}
    first, second = await case.run(**sampled), await case.run(**sampled)
    assert [token.text for token in first] == [token.text for token in second]


async def test_every_value_of_the_contract_is_taken(case: Case) -> None:
    tokens = await case.run(
        temperature=3.4028234663852886e38,
        top_k=2**31 - 1,
        top_p=1e-5,
        repetition_penalty=1e30,
        seed=-(2**63),
        bad_words=("unlikely words",),
        max_tokens=2,
    )
    assert len(tokens) == 2


async def test_streams_side_by_side_keep_their_own_tokens(case: Case) -> None:
    alone = await case.run(max_tokens=6)
    together = await asyncio.gather(*(case.run(max_tokens=6) for _ in range(4)))
    assert [[token.text for token in one] for one in together] == [
        [token.text for token in alone]
    ] * 4


async def test_urgent_requests_are_taken_as_well(case: Case) -> None:
    assert len(await case.run(max_tokens=2, priority=-4)) == 2


async def test_a_finished_generation_leaves_nothing(case: Case) -> None:
    await case.run(max_tokens=2)
    await eventually(lambda: not case.held(), case.held, within=1)


async def test_closing_frees_the_engine(case: Case) -> None:
    stream = await case.submit(max_tokens=LONG)
    await anext(stream)
    stream.close()
    await eventually(lambda: not case.held(), case.held, within=1)


async def test_closing_before_the_first_token_frees_the_engine(case: Case) -> None:
    (await case.submit(max_tokens=LONG)).close()
    await eventually(lambda: not case.held(), case.held, within=1)


async def test_a_closed_stream_has_no_more_tokens(case: Case) -> None:
    stream = await case.submit(max_tokens=LONG)
    await anext(stream)
    stream.close()
    assert await tokens_of(stream) == []
    stream.close()


async def test_stopping_is_a_normal_end(case: Case) -> None:
    stream = await case.submit(max_tokens=LONG)
    tokens = await anext(stream)
    stream.stop()
    tokens += await tokens_of(stream)
    assert 0 < len(tokens) < LONG
    assert all(token.finish is None for token in tokens)
    await eventually(lambda: not case.held(), case.held, within=1)


async def test_a_waiting_reader_is_woken_by_an_end(case: Case) -> None:
    stream = await case.submit(max_tokens=LONG)
    reading = asyncio.create_task(tokens_of(stream))
    await eventually(lambda: stream.idle or reading.done())
    stream.stop()
    await asyncio.wait_for(reading, 1)


async def test_a_broken_stream_says_why_after_its_tokens(case: Case) -> None:
    stream = await case.submit(max_tokens=LONG)
    await anext(stream)
    stream.fail(IncompleteGeneration("broken by a test"))
    with pytest.raises(IncompleteGeneration, match="broken by a test"):
        await tokens_of(stream)
    await eventually(lambda: not case.held(), case.held, within=1)


async def test_whoever_gives_up_while_it_is_taken_leaves_nothing(case: Case) -> None:
    taking = asyncio.create_task(case.submit(max_tokens=LONG))
    await asyncio.sleep(0)
    taking.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        (await taking).close()
    await eventually(lambda: not case.held(), case.held, within=1)


async def test_an_unknown_token_is_refused(case: Case) -> None:
    if case.unknown_token is None:
        pytest.skip("this engine refuses no token")
    with pytest.raises(GenerationError):
        await case.submit(prompt=[case.unknown_token])
    await eventually(lambda: not case.held(), case.held, within=1)


async def test_tokens_are_spelled(case: Case) -> None:
    ids = await case.engine.tokenize(case.text)
    pieces = await case.engine.pieces(ids)
    assert len(pieces) == len(ids)
    assert all(pieces) is case.spells


async def test_log_probabilities_only_when_asked_for(case: Case) -> None:
    assert {token.logprob for token in await case.run(max_tokens=2)} == {None}
    if not case.gives_logprobs:
        pytest.skip("this engine has none")
    for token in await case.run(max_tokens=3, logprobs=2):
        assert token.logprob is not None
        assert token.logprob <= 0
        assert len(token.top) == 2
        assert token.top[0].logprob >= token.top[1].logprob
        assert all(bool(other.text) is case.spells for other in token.top)


async def test_its_load_is_told_without_asking(case: Case) -> None:
    load = case.engine.load()
    assert load.running >= 0
    assert load.waiting >= 0
    assert 0 <= load.kv_cache_usage <= 1
