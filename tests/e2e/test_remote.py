"""The sidecar on a real vLLM server: the same frames as the engine in this process."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.e2e.remote import RemoteGateway
from tests.e2e.support import (
    E2E,
    RealGateway,
    ask,
    details,
    eventually,
    exchange,
    finish_reason,
    streaming,
    text_of,
    without_times,
)
from tests.e2e.test_text import COPIED, POEM, QUESTION, STORY
from tests.page import PAGE_REQUEST
from tests.support import MODEL, STOP_PATH, RunningGateway, get, request_bytes

pytestmark = E2E

PROMPTS = {
    "story": STORY,
    "an end token": QUESTION,
    "poem": POEM,
    **{name: prompt for name, (prompt, _) in COPIED.items()},
}


async def both(
    real: RealGateway, remote: RemoteGateway, text: str, **parameters: Any
) -> tuple[list[bytes], list[bytes]]:
    """The frames of one request from both gateways."""
    gateways = (real.running, remote.running)
    one, other = [
        without_times(await ask(running, text, top={"id": "same"}, **parameters))
        for running in gateways
    ]
    return one, other


@pytest.mark.parametrize("text", PROMPTS.values(), ids=PROMPTS.keys())
async def test_greedy_frames_equal_those_of_the_embedded_engine(
    real: RealGateway, remote: RemoteGateway, text: str
) -> None:
    embedded, sidecar = await both(real, remote, text, max_new_tokens=30, do_sample=False)
    assert sidecar == embedded


@pytest.mark.parametrize("text", [STORY, POEM])
async def test_the_same_seed_gives_the_same_frames(
    real: RealGateway, remote: RemoteGateway, text: str
) -> None:
    sampled = {"temperature": 0.9, "top_k": 40, "top_p": 0.95, "repetition_penalty": 1.1}
    embedded, sidecar = await both(real, remote, text, max_new_tokens=16, seed=2**63 + 5, **sampled)
    assert sidecar == embedded


async def _texts(running: RunningGateway, prompts: list[str]) -> list[list[str]]:
    answers = await asyncio.gather(
        *(ask(running, prompt, max_new_tokens=16, do_sample=False) for prompt in prompts)
    )
    assert all(answer.complete for answer in answers)
    return [answer.texts for answer in answers]


async def test_parallel_streams_equal_as_well(real: RealGateway, remote: RemoteGateway) -> None:
    """Frame by frame, also where the busy server merges tokens of one chunk."""
    prompts = list(PROMPTS.values()) * 2
    assert await _texts(remote.running, prompts) == await _texts(real.running, prompts)


async def test_the_pages_example(remote: RemoteGateway) -> None:
    response = await exchange(remote.running, request_bytes(PAGE_REQUEST))
    assert response.complete
    first, *_, last = response.frames
    assert list(first) == [
        *("id", "model_name", "model_version", "text_output", "details"),
        *("prefill_time", "decode_time"),
    ]
    assert last["details"]["generated_tokens"] == len(response.frames)


async def test_both_ends_are_seen(remote: RemoteGateway) -> None:
    short = await ask(remote.running, STORY, max_new_tokens=3, do_sample=False)
    assert finish_reason(short) == "length"
    answer = await ask(remote.running, QUESTION, max_new_tokens=100, do_sample=False)
    assert finish_reason(answer) == "eos_token"
    assert details(answer, "generated_tokens") == list(range(1, len(answer.frames) + 1))


async def test_times_are_real(remote: RemoteGateway) -> None:
    response = await ask(remote.running, STORY, max_new_tokens=5, do_sample=False)
    first, *later = response.frames
    assert first["prefill_time"] > 1
    assert all(frame["decode_time"] > 1 for frame in later)
    assert details(response, "batch_size") == [1] * 5
    assert all(wait >= 0 for wait in details(response, "queue_wait_time"))


async def test_more_tokens_than_fit_are_cut_and_long_prompts_refused(remote: RemoteGateway) -> None:
    prompt = " the" * (remote.info.max_model_len - 3)
    response = await ask(remote.running, prompt, max_new_tokens=1000, do_sample=False)
    assert len(response.frames) == 3
    assert finish_reason(response) == "length"
    assert (await ask(remote.running, prompt + " the" * 3)).status == 424


async def test_a_client_that_leaves_frees_the_server(remote: RemoteGateway) -> None:
    async with streaming(remote.running.port, STORY, max_new_tokens=500) as stream:
        await stream.frame()
        await stream.leave()
    await eventually(lambda: not remote.held(), within=2.0, what="the server still works on it")


async def test_stop_infer_stops_it_there(remote: RemoteGateway) -> None:
    async with streaming(remote.running.port, STORY, max_new_tokens=500) as stream:
        first = await stream.frame()
        path = STOP_PATH
        stopped = await exchange(remote.running, request_bytes({"id": first["id"]}, path))
        assert stopped.status == 200
        frames, complete = await stream.rest()
    assert complete
    assert frames[-1]["details"]["finish_reason"] == "stop_sequence"
    await eventually(lambda: not remote.held(), within=2.0, what="the server still works on it")


async def test_the_other_routes(real: RealGateway, remote: RemoteGateway) -> None:
    """One object, token ids, health: all of them over the same engine seam."""
    base = f"/v2/models/{MODEL}"
    body = {"id": "a", "text_input": STORY, "parameters": {"max_new_tokens": 5}}
    raw = request_bytes(body, f"{base}/generate")
    answers = [await exchange(running, raw) for running in (real.running, remote.running)]
    assert answers[0].json == answers[1].json

    ids = await remote.engine.tokenize(STORY)
    tensor = {"name": "input0", "shape": [len(ids)], "datatype": "UINT32", "data": ids}
    infer = {
        "id": "a",
        "inputs": [tensor],
        "outputs": [{"name": "output0"}],
        "parameters": {"max_new_tokens": 5},
    }
    raw = request_bytes(infer, f"{base}/infer")
    answers = [await exchange(running, raw) for running in (real.running, remote.running)]
    assert answers[0].json == answers[1].json

    for path in ("/v2/health/live", "/v2/health/ready", f"{base}/ready", "/health/timed-30"):
        assert (await get(remote.running.port, path)).status == 200


async def test_a_tail_and_a_long_text_are_whole(real: RealGateway, remote: RemoteGateway) -> None:
    embedded, sidecar = await both(real, remote, POEM, max_new_tokens=7, do_sample=False)
    assert sidecar == embedded
    assert (
        "\ufffd"
        not in text_of(await ask(remote.running, POEM * 3, max_new_tokens=24, do_sample=False))[:-1]
    )
