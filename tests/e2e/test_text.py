"""The text: real tokens of a real model, compared with vLLM driven directly."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from proxy.engines.collector import CollectorReader
from proxy.engines.detokenizer import REPLACEMENT
from proxy.engines.stream import TokenStream
from tests.e2e.support import (
    E2E,
    NAMES,
    RealGateway,
    ask,
    details,
    eventually,
    exchange,
    finish_reason,
    streaming,
    text_of,
)
from tests.page import PAGE_REQUEST
from tests.support import MODEL, get_bytes, request_bytes, serving
from translators.tokens import Token

pytestmark = E2E

"""The request example of the API page, as printed there."""
STORY = "Once upon a time"
QUESTION = (
    "<|im_start|>user\nWhat is 1+1? Answer with one number.<|im_end|>\n<|im_start|>assistant\n"
)
"""Answered in a few tokens and an end token."""
FAMILY = "\U0001f468\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466"
"""Man, woman, girl and boy, joined to one picture: 7 code points, 18 tokens."""
POEM = "春眠不觉晓，处处闻啼鸟。"  # noqa: RUF001 - Chinese has its own comma
COPIED = {
    "chinese": (POEM * 3 + POEM[:2], POEM[2:]),
    "emoji": ("\U0001f600 \U0001f389 \U0001f680 " * 4 + "\U0001f600", "\U0001f389\U0001f680"),
    "combined emoji": (f"Family: {FAMILY}. " * 4 + "Family:", FAMILY),
}
"""A prompt that repeats something, and what the model then writes on with."""


@pytest.fixture
def workers(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture
def real(workers: int, real: RealGateway, two_workers: RealGateway) -> RealGateway:
    """The gateway, or two workers that share an engine like its own."""
    return real if workers == 1 else two_workers


async def generate_directly(
    real: RealGateway, prompt: str, count: int, **sampling: Any
) -> list[int]:
    """The token ids that vLLM's own `generate` gives, without anything of ours."""
    from vllm import SamplingParams, TokensPrompt

    ids: list[int] = []
    async for output in real.engine.llm.generate(
        TokensPrompt(prompt_token_ids=await real.ids(prompt)),
        SamplingParams(max_tokens=count, **{"temperature": 0.0, **sampling}),
        f"direct-{time.monotonic_ns()}",
    ):
        ids = list(output.outputs[0].token_ids)
    return ids


def texts_so_far(real: RealGateway, ids: list[int]) -> list[str]:
    """The text after each token by the tokenizer's plain `decode`: it grows when it is whole."""
    decode = real.engine.llm.get_tokenizer().decode
    texts = [""]
    for end in range(1, len(ids) + 1):
        text = decode(ids[:end], skip_special_tokens=True)
        texts.append(texts[-1] if text.endswith(REPLACEMENT) else text)
    return texts[1:]


def accumulated(frames: list[Any]) -> list[str]:
    texts, so_far = [], ""
    for frame in frames:
        so_far += frame["text_output"]
        texts.append(so_far)
    return texts


async def test_the_page_request_as_printed_gives_frames_in_the_page_order(
    real: RealGateway,
) -> None:
    response = await exchange(real.running, request_bytes(PAGE_REQUEST))
    assert response.status == 200
    assert response.complete
    assert len(response.frames) == 5
    top = ["id", "model_name", "model_version", "text_output", "details"]
    keys = ["generated_tokens", "first_token_cost", "decode_cost", "batch_size", "queue_wait_time"]
    for number, frame in enumerate(response.frames, 1):
        last = ["finish_reason"] if number == 5 else []
        assert list(frame) == [*top, "prefill_time", "decode_time"]
        assert list(frame["details"]) == last + keys
        assert (frame["id"], frame["model_name"]) == ("a123", "llama3-70b")
        assert frame["details"]["generated_tokens"] == number
        assert (frame["prefill_time"] is None) == (number > 1)
        assert (frame["decode_time"] is None) == (number == 1)
    assert finish_reason(response) == "length"
    assert text_of(response).strip()


async def test_greedy_is_what_vllm_gives_token_by_token(real: RealGateway) -> None:
    prompt = "The three primary colours are"
    ids = await generate_directly(real, prompt, 32)
    response = await ask(real.running, prompt, max_new_tokens=32)
    assert details(response, "generated_tokens") == list(range(1, len(ids) + 1))
    assert accumulated(response.frames) == texts_so_far(real, ids)


async def test_a_sampled_text_is_what_vllm_gives_for_the_seed(real: RealGateway) -> None:
    wanted: dict[str, Any] = {
        "temperature": 0.8,
        "top_k": 40,
        "top_p": 0.95,
        "repetition_penalty": 1.2,
        "seed": 7,
    }
    ids = await generate_directly(real, STORY, 16, **wanted)
    response = await ask(real.running, STORY, max_new_tokens=16, **wanted)
    assert accumulated(response.frames) == texts_so_far(real, ids)


async def test_the_same_seed_gives_the_same_text_and_another_seed_another(
    real: RealGateway,
) -> None:
    async def sampled(seed: int | None) -> str:
        chosen: dict[str, Any] = {} if seed is None else {"seed": seed}
        response = await ask(
            real.running, STORY, do_sample=True, max_new_tokens=24, temperature=1.0, **chosen
        )
        return text_of(response)

    first, other = await sampled(123), await sampled(456)
    assert await sampled(123) == first
    assert other != first
    assert len({await sampled(None) for _ in range(3)}) == 3


@pytest.mark.parametrize("seed", [2**63 - 1, 2**63, 2**64 - 2, 2**64 - 1])
async def test_the_largest_seeds_are_seeds(real: RealGateway, seed: int) -> None:
    """2^64-1 as int64 would be vLLM's "no seed"."""
    answers = await asyncio.gather(
        *(ask(real.running, STORY, seed=seed, do_sample=True, max_new_tokens=12) for _ in range(3))
    )
    assert len({text_of(answer) for answer in answers}) == 1


@pytest.mark.parametrize("kind", COPIED)
async def test_characters_of_several_tokens_come_whole(real: RealGateway, kind: str) -> None:
    prompt, copied = COPIED[kind]
    response = await ask(real.running, prompt, max_new_tokens=40)
    text = text_of(response)
    assert copied in text
    # The 40th token may leave a character half done: contract §4, the tail.
    assert REPLACEMENT not in text[:-1]
    inside = [frame for frame in response.frames[:-1] if frame["text_output"] == ""]
    assert inside, "no character needed more than one token: the test shows nothing"
    assert len(response.frames) == 40
    ids = await generate_directly(real, prompt, 40)
    assert accumulated(response.frames[:-1]) == texts_so_far(real, ids)[:-1]


async def test_a_tail_inside_a_character_is_flushed_or_lost_by_contract(
    real: RealGateway,
) -> None:
    prompt, _ = COPIED["emoji"]
    documented = await ask(real.running, prompt, max_new_tokens=2)
    async with a_second_gateway(real, contract="server") as second:
        server = await ask(second, prompt, max_new_tokens=2)
    assert [frame["text_output"] for frame in documented.frames] == ["", REPLACEMENT]
    assert [frame["text_output"] for frame in server.frames] == ["", ""]


async def test_both_ends_are_seen(real: RealGateway) -> None:
    ended = await ask(real.running, QUESTION, max_new_tokens=20)
    assert finish_reason(ended) == "eos_token"
    assert 1 < len(ended.frames) < 20
    assert ended.frames[-1]["text_output"] == "", "the end token is counted, not shown"
    assert "<|im_end|>" not in text_of(ended)
    cut = await ask(real.running, QUESTION, max_new_tokens=len(ended.frames) - 1)
    assert finish_reason(cut) == "length"
    assert text_of(cut) == text_of(ended)


async def test_the_end_token_on_the_last_allowed_token(real: RealGateway) -> None:
    tokens = len((await ask(real.running, QUESTION, max_new_tokens=20)).frames)
    documented = await ask(real.running, QUESTION, max_new_tokens=tokens)
    assert finish_reason(documented) == "eos_token"
    async with a_second_gateway(real, contract="server") as second:
        assert finish_reason(await ask(second, QUESTION, max_new_tokens=tokens)) == "length"


async def test_stop_words_end_the_text_before_them(real: RealGateway) -> None:
    whole = text_of(await ask(real.running, "Count: one, two, three,", max_new_tokens=16))
    word = whole.split(",")[1]
    stopped = await ask(
        real.running, "Count: one, two, three,", top={"stop_words": [word]}, max_new_tokens=16
    )
    assert text_of(stopped) == whole.partition(word)[0]
    assert finish_reason(stopped) == "eos_token"
    await becomes_idle(real)


async def test_bad_words_are_never_written(real: RealGateway) -> None:
    prompt = "The capital of France is"
    free = text_of(await ask(real.running, prompt, max_new_tokens=4))
    assert "Paris" in free
    banned = text_of(
        await ask(real.running, prompt, top={"bad_words": ["Paris"]}, max_new_tokens=12)
    )
    assert "Paris" not in banned


async def test_the_text_so_far_in_each_frame(real: RealGateway) -> None:
    prompt, _ = COPIED["chinese"]
    parts = await ask(real.running, prompt, max_new_tokens=12)
    grown = await ask(real.running, prompt, top={"accumulate_tokens": True}, max_new_tokens=12)
    async with a_second_gateway(real, full_text=True) as second:
        full = await ask(second, prompt, max_new_tokens=12)
    expected = accumulated(parts.frames)
    assert [frame["text_output"] for frame in full.frames] == expected
    assert [frame["text_output"] for frame in grown.frames] == expected


async def test_the_server_contract(real: RealGateway) -> None:
    async with a_second_gateway(real, contract="server") as second:
        response = await ask(second, STORY, max_new_tokens=4, top_k=0, seed=0, timeout=65535)
        refused = await ask(second, STORY, seed=2**63)
    times = [(frame["prefill_time"], frame["decode_time"]) for frame in response.frames]
    assert [type(value) for pair in times for value in pair if value is not None] == [int] * 4
    assert refused.status == 422


async def test_every_served_name_is_served_and_echoed(real: RealGateway) -> None:
    for name in NAMES:
        path = f"/v2/models/{name}/generate_stream"
        body = {"text_input": STORY, "parameters": {"max_new_tokens": 1}}
        response = await exchange(real.running, request_bytes(body, path))
        assert response.frames[0]["model_name"] == name


async def test_a_prompt_too_long_is_424_and_the_longest_is_served(real: RealGateway) -> None:
    limit = real.running.gateway.prompt_limit
    assert limit == 2047
    assert len(await real.ids(" word" * limit)) == limit
    fits = await ask(real.running, " word" * limit, max_new_tokens=20)
    assert finish_reason(fits) == "length"
    assert len(fits.frames) == 1, "the context has room for one token"
    refused = await ask(real.running, " word" * (limit + 1), max_new_tokens=1)
    assert refused.status == 424
    assert refused.json["error_type"] == "Generation Error"


@pytest.mark.parametrize(
    "extreme",
    [
        {"temperature": 1.1e-6},
        {"temperature": 1e-5},
        {"temperature": 0.0011},
        {"temperature": 2.5},
        {"temperature": 3.4e38},
        {"temperature": 1e308},
        {"repetition_penalty": 5e-324},
        {"repetition_penalty": 1e-30},
        {"repetition_penalty": 1e30},
        {"repetition_penalty": 1.7e308},
        {"top_p": 1.1e-6},
        {"top_k": 1},
        {"top_k": 2147483647},
        {"temperature": 1.1e-5, "repetition_penalty": 1e30, "top_p": 1.1e-6, "top_k": 1},
        {"max_new_tokens": 2147483647, "temperature": 1e-6 + 1e-12},
    ],
    ids=str,
)
async def test_extreme_values_are_served(real: RealGateway, extreme: dict[str, Any]) -> None:
    parameters = {"max_new_tokens": 4, "do_sample": True, "seed": 1, **extreme}
    if parameters["max_new_tokens"] > 4:
        # The room in the context is all there is: see that it begins, and leave.
        async with streaming(real.running.port, STORY, **parameters) as stream:
            assert (await stream.frame())["details"]["generated_tokens"] == 1
    else:
        assert len((await ask(real.running, STORY, **parameters)).frames) in range(1, 5)
    await becomes_idle(real)
    after = await ask(real.running, QUESTION, max_new_tokens=20)
    assert finish_reason(after) == "eos_token", "the engine is not what it was"


async def test_small_temperatures_are_greedy(real: RealGateway) -> None:
    greedy = text_of(await ask(real.running, STORY, do_sample=False, max_new_tokens=12))
    cold = text_of(await ask(real.running, STORY, temperature=2e-6, seed=3, max_new_tokens=12))
    dialect = await ask(real.running, STORY, top={"temperature": 0.0}, max_new_tokens=12)
    assert cold == greedy
    assert text_of(dialect) == greedy


@pytest.mark.alone
async def test_no_token_is_lost_or_merged_when_the_reader_lags(
    real: RealGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two kinds of lag: a client that reads slowly, and vLLM's collectors read seldom."""
    prompt, count = POEM * 4, 400
    pushed, merged = slow_readers(monkeypatch, every=8, seconds=1.0)
    async with a_collector_gateway(real) as collector:
        direct, collected, ids = await asyncio.gather(
            ask(real.running, prompt, max_new_tokens=count),
            ask(collector, prompt, max_new_tokens=count),
            generate_directly(real, prompt, count),
        )
    expected = texts_so_far(real, ids)
    assert len(ids) == count, "the prompt must make the model write on and on"
    assert max(pushed) > 1, "no token had to wait for its reader: the test shows nothing"
    assert max(merged) > 1, "vLLM merged nothing: the test shows nothing"
    for response in (direct, collected):
        assert details(response, "generated_tokens") == list(range(1, count + 1))
        assert accumulated(response.frames)[:-1] == expected[:-1]
        assert all(frame["decode_time"] >= 0 for frame in response.frames[1:])
    # Though they were read late, the tokens have the times of their own steps.
    # The slowest are left out: this machine may have paused the engine itself.
    times = sorted(frame["decode_time"] for frame in direct.frames[1:])
    assert times[0] > 1
    assert times[len(times) * 9 // 10] < 1000


def slow_readers(
    monkeypatch: pytest.MonkeyPatch, *, every: int, seconds: float
) -> tuple[list[int], list[int]]:
    """Make both readers pause now and then.

    Returns how many tokens each read of a stream finds, and how many each
    output of vLLM's collectors holds.
    """
    from vllm.v1.engine.output_processor import RequestOutputCollector

    pushed: list[int] = []
    merged: list[int] = []
    next_tokens, get, read = (
        TokenStream.__anext__,
        RequestOutputCollector.get,
        CollectorReader.read,
    )

    async def slow_next(self: TokenStream) -> list[Token]:
        if len(pushed) % every == 0:
            await asyncio.sleep(seconds)
        tokens = await next_tokens(self)
        pushed.append(len(tokens))
        return tokens

    async def slow_get(self: RequestOutputCollector) -> Any:
        if len(merged) % every == 0:
            await asyncio.sleep(seconds)
        return await get(self)

    def counting_read(self: CollectorReader, output: Any, batch_size: int) -> None:
        merged.append(len(output.outputs[0].token_ids))
        read(self, output, batch_size)

    monkeypatch.setattr(TokenStream, "__anext__", slow_next)
    monkeypatch.setattr(RequestOutputCollector, "get", slow_get)
    monkeypatch.setattr(CollectorReader, "read", counting_read)
    return pushed, merged


@pytest.mark.alone
async def test_both_token_paths_give_the_same_text(real: RealGateway) -> None:
    prompts = [STORY, QUESTION, *(prompt for prompt, _ in COPIED.values())]
    async with a_collector_gateway(real) as collector:
        for prompt in prompts:
            direct = await ask(real.running, prompt, max_new_tokens=20)
            collected = await ask(collector, prompt, max_new_tokens=20)
            for key in ("generated_tokens", "finish_reason", "batch_size"):
                assert details(collected, key) == details(direct, key), (prompt, key)
            assert accumulated(collected.frames) == accumulated(direct.frames)


async def test_http_1_0_streams_the_real_thing(real: RealGateway) -> None:
    body = {"text_input": STORY, "parameters": {"max_new_tokens": 3}}
    response = await exchange(real.running, request_bytes(body, version="1.0"))
    assert response.body.count(b"data:{") == 3


async def test_metrics_hold_ours_and_those_of_vllm(real: RealGateway) -> None:
    await ask(real.running, STORY, max_new_tokens=1)
    text = (await exchange(real.running, get_bytes("/metrics"))).body.decode()
    assert "mindie_gateway_generated_tokens_total" in text
    assert "vllm:num_requests_running{" in text
    assert MODEL in text


async def becomes_idle(real: RealGateway) -> None:
    await eventually(lambda: real.idle, within=2.0, what="the engine holds no request")


def a_second_gateway(real: RealGateway, **settings: Any) -> Any:
    """Another gateway, with other settings, on the same running engine."""
    from tests.e2e.engines import Borrowed

    lent: Any = Borrowed(real.engine, real.running.gateway.info)
    return serving(lent, **settings)


def a_collector_gateway(real: RealGateway) -> Any:
    """Another gateway that reads vLLM's own collectors, on the same running engine."""
    from tests.e2e.engines import CollectorGuest

    return serving(CollectorGuest(real.engine))
