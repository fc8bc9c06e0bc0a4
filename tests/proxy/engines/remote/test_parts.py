"""The pure parts: events, chunks, figures, pieces, the request."""

from __future__ import annotations

import itertools
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.engines.base import EngineRequest
from proxy.engines.remote.chunks import BadChunkError, plain_token, read_chunk
from proxy.engines.remote.gauges import read_gauges
from proxy.engines.remote.pieces import Pieces, Run, fit, second_half
from proxy.engines.remote.probe import Profile
from proxy.engines.remote.request import completion
from proxy.engines.remote.sse import LineTooLongError, SseSplitter
from tests.fake_vllm import METRICS, Tokenizer
from translators.contract import FLOAT32_MAX
from translators.errors import IncompleteGeneration
from translators.sampling import ModelDefaults, Sampling
from translators.tokens import FinishReason


def blocks(body: bytes, cuts: list[int]) -> list[bytes]:
    edges = sorted({0, len(body), *(cut % (len(body) + 1) for cut in cuts)})
    return [body[begin:end] for begin, end in itertools.pairwise(edges)]


@given(
    payloads=st.lists(st.binary(max_size=30).filter(lambda b: b"\n" not in b and b == b.strip())),
    cuts=st.lists(st.integers(min_value=0)),
)
def test_payloads_are_the_same_however_they_are_cut(payloads: list[bytes], cuts: list[int]) -> None:
    body = b"".join(b"data: %b\n\n" % payload for payload in payloads)
    splitter = SseSplitter(limit=100)
    assert [each for block in blocks(body, cuts) for each in splitter.feed(block)] == payloads


LINES = (b"data: a", b"data: b", b"", b"", b"data:c", b"data:  d", b": x", b"id: 1", b"data: f\r")


@given(lines=st.lists(st.sampled_from(LINES), max_size=12), cuts=st.lists(st.integers(min_value=0)))
def test_every_line_is_an_event_whatever_stands_around_it(
    lines: list[bytes], cuts: list[int]
) -> None:
    """Also between those in vLLM's own form, which are cut in another way."""
    splitter = SseSplitter(limit=100)
    body = b"".join(line + b"\n" for line in lines)
    seen = [each for block in blocks(body, cuts) for each in splitter.feed(block)]
    assert seen == [line[5:].strip() for line in lines if line.startswith(b"data:")]


def test_other_lines_are_skipped() -> None:
    body = b": comment\nevent: x\nid: 1\nretry: 5\n\ndata:a\r\ndata: b\n\nnonsense\n"
    assert list(SseSplitter(100).feed(body)) == [b"a", b"b"]


@given(cuts=st.lists(st.integers(min_value=0)))
def test_a_line_over_the_limit_is_refused_after_those_before_it(cuts: list[int]) -> None:
    body = b"data: good\n\n" + b"data: " + b"x" * 95 + b"\n\n"
    splitter, seen = SseSplitter(limit=100), []
    with pytest.raises(LineTooLongError):
        for block in blocks(body, cuts):
            seen += list(splitter.feed(block))
    assert seen in ([b"good"], [])
    assert len(splitter._begun) <= 100 + len(body)


def test_a_line_at_the_limit_is_not_refused() -> None:
    assert list(SseSplitter(10).feed(b"data: 1234\n")) == [b"1234"]


# As vLLM 0.23.0 and 0.32.0 were seen to write them.
TOKEN = (
    b'{"id":"cmpl-abc","object":"text_completion","created":1795983432,"model":"smol","choices":'
    b'[{"index":0,"text":" of","logprobs":null,"finish_reason":null,"stop_reason":null,'
    b'"prompt_token_ids":[19556,905],"token_ids":[282]}],"usage":{"prompt_tokens":2,'
    b'"total_tokens":3,"completion_tokens":1}}'
)
LAST_WORDS = (
    b'{"id":"cmpl-abc","object":"text_completion","created":1795983432,"model":"smol",'
    b'"choices":[],"usage":{"prompt_tokens":2,"total_tokens":6,"completion_tokens":4},'
    b'"system_fingerprint":"vllm-0.32.0-02b111dc","metrics":{"time_to_first_token_ms":60.298,'
    b'"generation_time_ms":151.2,"queue_time_ms":0.5,"mean_itl_ms":50.4,"tokens_per_second":18.9}}'
)


def test_a_token() -> None:
    chunk = read_chunk(TOKEN)
    assert (chunk.ids, chunk.text, chunk.reason, chunk.status) == ([282], " of", None, None)


def test_an_end() -> None:
    chunk = read_chunk(TOKEN.replace(b'"finish_reason":null', b'"finish_reason":"length"'))
    assert chunk.reason is FinishReason.LENGTH


def test_without_ids_the_usage_counts() -> None:
    chunk = read_chunk(TOKEN.replace(b"[282]", b"null"))
    assert (chunk.ids, chunk.total) == (None, 1)


def test_the_last_words_of_0_32_with_times() -> None:
    chunk = read_chunk(LAST_WORDS)
    assert (chunk.ids, chunk.total, chunk.queued) == ([], 4, 0.0005)


def test_the_last_words_of_0_23() -> None:
    chunk = read_chunk(LAST_WORDS.partition(b',"metrics"')[0] + b"}")
    assert (chunk.ids, chunk.queued) == ([], None)


def test_a_queue_time_is_never_negative_and_may_be_unknown() -> None:
    assert read_chunk(LAST_WORDS.replace(b'ms":0.5', b'ms":-3')).queued == 0.0
    assert read_chunk(LAST_WORDS.replace(b'ms":0.5', b'ms":null')).queued is None


def test_an_error_object() -> None:
    assert read_chunk(b'{"error":{"message":"x","code":404}}').status == 404
    assert read_chunk(b'{"error":{"message":"x","code":"y"}}').status == 500


def streamed(texts: list[str], ids: list[int], **more: Any) -> list[bytes]:
    """Chunks as vLLM writes them."""
    chunks = []
    for number, (text, token_id) in enumerate(zip(texts, ids, strict=False)):
        choice = {
            "index": 0,
            "text": text,
            "logprobs": None,
            "finish_reason": None,
            "prompt_token_ids": [1, 2] if not number else None,
            "token_ids": [token_id],
        }
        document = {"id": "cmpl-1", "choices": [choice], **more}
        if "usage" in more:
            document["usage"] = {"prompt_tokens": 2, "completion_tokens": number + 1}
        chunks.append(orjson.dumps(document))
    return chunks


@given(
    texts=st.lists(st.text(), min_size=1, max_size=9),
    ids=st.lists(st.integers(0, 2**31 - 1), min_size=9, max_size=9),
    usage=st.booleans(),
)
def test_a_plain_token_is_what_json_says(texts: list[str], ids: list[int], usage: bool) -> None:
    for payload in streamed(texts, ids, **({"usage": None} if usage else {})):
        chunk = read_chunk(payload)
        assert chunk.ids is not None
        assert plain_token(payload) == (chunk.ids[0], chunk.text)


PLAIN = streamed(["x", "y"], [5, 7])[1]


@pytest.mark.parametrize(
    "other",
    [
        PLAIN.replace(b'"finish_reason":null', b'"finish_reason":"stop"'),
        PLAIN.replace(b"[7]", b"[7,8]"),
        PLAIN.replace(b"[7]", b"[]"),
        PLAIN.replace(b"[7]", b"[-7]"),
        PLAIN.replace(b"[7]", b"[7.0]"),
        PLAIN.replace(b"[7]", b"null"),
        PLAIN.replace(b"[7]", b"[7"),
        PLAIN[: PLAIN.index(b"[7]") + 2],
        PLAIN.replace(b"[7]", b"[%s]" % (b"7" * 5000)),
        PLAIN.replace(b"[7]", b"[2147483648]"),
        PLAIN.replace(b'"y"', b"5"),
        PLAIN.replace(b'"y"', b'"y'),
        PLAIN.replace(b'"y"', b'"\xff"'),
        PLAIN.replace(b'"logprobs":null', b'"logprobs":{}'),
        PLAIN + b"x",
        PLAIN[:-1],
        PLAIN.replace(b"[7]}", b'[7]},{"text":"z"}'),
        PLAIN.replace(b'"text"', b'"delta"'),
        b'{"error":{"message":"x"}}',
        LAST_WORDS,
        b"[" * 100_000,
        b"[DONE]",
        b"",
    ],
)
def test_whatever_differs_is_no_plain_token(other: bytes) -> None:
    assert plain_token(PLAIN) == (7, "y")
    assert plain_token(other) is None


@given(st.binary())
def test_a_payload_of_any_bytes_is_no_plain_token(payload: bytes) -> None:
    assert plain_token(payload) is None


@given(st.binary())
def test_nothing_but_chunks_and_refusals(payload: bytes) -> None:
    try:
        read_chunk(payload)
    except BadChunkError:
        return


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)
FIELDS = st.fixed_dictionaries(
    {},
    optional={
        "text": JSON,
        "token_ids": JSON,
        "finish_reason": JSON,
        "logprobs": JSON,
    },
)


@given(
    st.fixed_dictionaries(
        {"choices": st.lists(FIELDS, max_size=2) | JSON},
        optional={"usage": JSON, "metrics": JSON, "error": JSON},
    )
)
def test_any_json_is_a_chunk_or_refused(document: Any) -> None:
    try:
        chunk = read_chunk(orjson.dumps(document))
    except BadChunkError:
        return
    assert isinstance(chunk.text, str)


def test_log_probabilities_are_ranked() -> None:
    told = {
        "tokens": ["token_id:5"],
        "token_logprobs": [-1.5],
        "top_logprobs": [{"token_id:5": -1.5, "token_id:7": -0.5}],
    }
    chunk = read_chunk(
        orjson.dumps({"choices": [{"text": "x", "token_ids": [5], "logprobs": told}]})
    )
    assert chunk.logprobs is not None
    assert chunk.logprobs[0].own == -1.5
    assert chunk.logprobs[0].top == [(7, -0.5), (5, -1.5)]


def test_the_figures_of_a_metrics_page() -> None:
    page = METRICS.replace(
        'requests_running{engine="0",model_name="smol"} 0.0', "requests_running 3.0"
    )
    page += 'vllm:num_requests_running{engine="1",model_name="smol"} 2.0\n'
    page += 'vllm:kv_cache_usage_perc{engine="1",model_name="smol"} 5e-1\n'
    page += 'vllm:cache_config_info{block_size="128",engine="1",num_gpu_blocks="364"} 1.0\n'
    gauges = read_gauges(page.encode())
    assert gauges is not None
    assert (gauges.running, gauges.waiting, gauges.kv_cache_usage) == (5, 0, 0.25)
    assert (gauges.kv_blocks, gauges.block_size) == (726, 128)


@pytest.mark.parametrize("page", [b"", b"\xff\xfe", b"up 1\n", b"vllm:num_requests_running NaN\n"])
def test_a_page_of_something_else_has_none(page: bytes) -> None:
    assert read_gauges(page) is None


def test_the_text_of_a_token_from_the_text_of_two() -> None:
    assert second_half(" word word") == " word"
    assert second_half("word word") == " word", "the first space was dropped"
    assert second_half("abab") == "ab"
    assert second_half("") == ""
    assert second_half("\ufffd\ufffd") is None


@pytest.mark.parametrize(
    ("pieces", "text", "runs"),
    [
        (["a", "b"], "ab", [Run(2, None)]),
        (["a", "b"], "ax", None),
        (["a", None, "b"], "a你b", [Run(1, None), Run(1, "你"), Run(1, None)]),
        ([None, None], "😀", [Run(2, "😀")]),
        (["a", None], "a", [Run(1, None), Run(1, "")]),
        ([None, "a", None], "éa", [Run(1, "é"), Run(1, None), Run(1, "")]),
        ([None, "a"] * 5, "a" * 5, None),
    ],
)
def test_whole_pieces_show_where_the_others_are(
    pieces: list[str | None], text: str, runs: list[Run] | None
) -> None:
    assert fit(pieces, text) == runs


@given(
    text=st.text(st.sampled_from("ab é你好😀 "), min_size=1, max_size=12),
    sizes=st.lists(st.integers(1, 7)),
)
async def test_a_merged_chunk_is_cut_as_if_it_had_not_been(text: str, sizes: list[int]) -> None:
    """The same text with the same tokens, whether or not chunks were merged."""
    tokenizer = Tokenizer()
    ids = tokenizer.encode(text)

    async def detokenize(some: list[int]) -> str:
        return tokenizer.decode(some)

    pieces = Pieces(detokenize)
    alone = _texts_one_by_one(tokenizer, ids)
    merged: list[str] = []
    begun: list[int] = []
    while len(merged) < len(ids):
        begin = len(merged)
        size = sizes.pop() if sizes else 4
        group = ids[begin : begin + size]
        parts = await pieces.cut(begun, group, "".join(alone[begin : begin + size]))
        merged += parts
        for token_id, part in zip(group, parts, strict=True):
            begun = [] if part else [*begun, token_id]
    assert merged == alone


def _texts_one_by_one(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    texts: list[str] = []
    held: list[int] = []
    for token_id in ids:
        held.append(token_id)
        text = tokenizer.decode(held)
        complete = not text.endswith("\ufffd")
        texts.append(text if complete else "")
        held = [] if complete else held
    return texts


async def test_each_token_is_asked_for_once() -> None:
    asked: list[list[int]] = []

    async def detokenize(ids: list[int]) -> str:
        asked.append(ids)
        return "ab" * len(ids)

    pieces = Pieces(detokenize)
    for _ in range(3):
        assert await pieces.cut([], [1, 2, 1], "ababab") == ["ab"] * 3
    assert asked == [[1, 1], [2, 2]]


async def test_what_is_known_and_fits_is_not_asked() -> None:
    async def detokenize(ids: list[int]) -> str:
        return "".join({1: "ab", 2: "c", 3: "\ufffd"}[token_id] for token_id in ids)

    pieces = Pieces(detokenize)
    assert pieces.known([1, 2], "abc") is None
    await pieces.cut([], [1, 2, 3], "abc")
    assert pieces.known([1, 2], "abc") == ["ab", "c"]
    assert pieces.known([1, 2], "abd") is None
    assert pieces.known([1, 3], "ab") is None, "a part of a character"
    assert pieces.known([1, 4], "ab") is None
    assert pieces.known([2] * 65, "c" * 65) is None


async def test_text_that_does_not_fit_comes_with_the_last_token() -> None:
    async def detokenize(ids: list[int]) -> str:
        return "x" * len(ids)

    assert await Pieces(detokenize).cut([], [1, 2], "other") == ["", "other"]
    assert await Pieces(detokenize).cut([], [1] * 65, "x" * 65) == [""] * 64 + ["x" * 65]


async def test_a_tail_is_what_is_left_of_a_character() -> None:
    async def detokenize(ids: list[int]) -> str:
        return "".join({1: "\ufffd", 2: "<|end|>"}[item] for item in ids)

    pieces = Pieces(detokenize)
    assert await pieces.tail([2, 1]) == "\ufffd"
    assert await pieces.tail([2]) == ""


async def test_a_failing_upstream_is_the_callers_to_handle() -> None:
    async def detokenize(ids: list[int]) -> str:
        raise IncompleteGeneration("gone")

    with pytest.raises(IncompleteGeneration):
        await Pieces(detokenize).cut([], [1, 2], "ab")


def profile(**changes: Any) -> Profile:
    values: dict[str, Any] = {
        "version": "0.32.0",
        "names": ("smol", "alias"),
        "max_model_len": 2048,
        "root": "/models/smol",
        "token_ids": True,
        "priority": True,
        "hottest": 2.0,
        "queue_time": False,
        "detokenize": True,
        "defaults": ModelDefaults(),
        **changes,
    }
    return Profile(**values)


def asked(profile: Profile, priority: int = 0, **changes: Any) -> dict[str, Any]:
    values: dict[str, Any] = {
        "temperature": 0.5,
        "top_k": 5,
        "top_p": 0.9,
        "repetition_penalty": 1.1,
        "seed": None,
        "max_tokens": 7,
        **changes,
    }
    request = EngineRequest("id", "text", [1, 2], Sampling(**values), priority=priority)
    return completion(request, profile, try_number=0)


def test_every_value_is_said() -> None:
    document = asked(profile(), seed=-3, bad_words=("x",), priority=-4)
    assert document == {
        "model": "smol",
        "prompt": [1, 2],
        "request_id": "id-0",
        "n": 1,
        "stream": True,
        "return_token_ids": True,
        "max_tokens": 7,
        "temperature": 0.5,
        "top_k": 5,
        "top_p": 0.9,
        "min_p": 0.0,
        "repetition_penalty": 1.1,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "seed": -3,
        "bad_words": ["x"],
        "priority": -4,
    }


def test_what_nobody_said_is_left_to_a_server_whose_defaults_are_unknown() -> None:
    unsaid = frozenset({"top_k", "top_p"})
    left = asked(profile(defaults=None), unsaid=unsaid)
    assert not unsaid & set(left)
    assert left["temperature"] == 0.5
    assert unsaid < set(asked(profile(), unsaid=unsaid))


def test_off_and_greedy() -> None:
    document = asked(profile(), top_k=None, temperature=0.0)
    assert (document["top_k"], document["temperature"]) == (0, 0.0)


def test_temperatures_are_those_the_server_takes() -> None:
    assert asked(profile(), temperature=9.0)["temperature"] == 2.0
    assert asked(profile(hottest=FLOAT32_MAX), temperature=9.0)["temperature"] == 9.0
    assert asked(profile(), temperature=1e-4)["temperature"] == 0.01


def test_no_priority_for_a_server_that_takes_none() -> None:
    assert "priority" not in asked(profile(priority=False), priority=-4)


def test_usage_only_where_it_is_read() -> None:
    assert "stream_options" not in asked(profile())
    assert asked(profile(queue_time=True))["stream_options"] == {"include_usage": True}
    counted = asked(profile(token_ids=False))["stream_options"]
    assert counted == {"include_usage": True, "continuous_usage_stats": True}


def test_log_probabilities_are_asked_for_by_id() -> None:
    document = asked(profile(), logprobs=3)
    assert (document["logprobs"], document["return_tokens_as_token_ids"]) == (3, True)
