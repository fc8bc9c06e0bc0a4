"""The process around a real engine: the engine's death, SIGTERM, and a cache too small."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import Any

from tests.e2e.herd import ROOMY, Herd
from tests.e2e.process import GatewayProcess, gateway_process
from tests.e2e.support import E2E, eventually, streaming
from tests.support import RawResponse, get, post

pytestmark = E2E

PROMPT = "The quick brown fox"
TOKENS = 4000
ENDLESS: dict[str, Any] = {
    "max_new_tokens": TOKENS,
    "temperature": 2.0,
    "top_k": 2147483647,
    "seed": 5,
}
"""At a thousand tokens a second, some seconds."""


async def health(port: int, which: str) -> RawResponse:
    return await get(port, f"/v2/health/{which}")


async def kill_in_mid_stream(process: GatewayProcess, port: int) -> None:
    """Kill the engine under a running stream, and see the stream break as it must."""
    async with streaming(port, PROMPT, **ENDLESS) as stream:
        for _ in range(3):
            await stream.frame()
        process.engine().kill()
        frames, complete = await stream.rest()
    assert not complete, "a broken stream must not look like a whole one"
    *before, last = frames
    assert all("err_msg" not in frame for frame in before)
    assert last["text_output"] == ""
    assert last["details"]["finish_reason"] == "stop_sequence"
    assert last["details"]["generated_tokens"] == 3 + len(before) < TOKENS
    assert last["error_type"] == "Incomplete Generation"
    assert last["err_msg"] == "the engine died"


async def test_the_engine_killed_in_mid_stream_ends_the_process(herd: Herd) -> None:
    process = herd.mortal
    await kill_in_mid_stream(process, await process.ready())
    assert await process.exit_code() == 1
    await process.leaves_nothing()
    assert b"the engine has died" in process.output
    assert PROMPT.encode() not in process.output


async def test_a_process_told_to_stay_lives_on_without_an_engine(herd: Herd) -> None:
    process = herd.staying
    port = await process.ready()
    assert (await health(port, "ready")).status == 200
    await kill_in_mid_stream(process, port)
    assert (await health(port, "live")).status == 200
    assert (await health(port, "ready")).status == 503
    refused = await post(port, {"text_input": PROMPT})
    assert (refused.status, refused.json["error_type"]) == (503, "Service Unavailable")
    process.terminate()
    assert await process.exit_code() == 1
    await process.leaves_nothing()


async def test_sigterm_lets_a_stream_finish_and_refuses_new_work(herd: Herd) -> None:
    """Also when it reaches the whole process group, as Ctrl-C does."""
    process = herd.draining
    port = await process.ready()
    async with streaming(port, PROMPT, **ENDLESS | {"max_new_tokens": 2000}) as stream:
        await stream.frame()
        process.interrupt(signal.SIGTERM)
        await process.says(b"state: the server is shutting down")
        assert (await post(port, {"text_input": PROMPT})).status == 503
        assert (await health(port, "ready")).status == 503
        assert (await health(port, "live")).status == 200
        frames, complete = await stream.rest()
    assert complete
    assert frames[-1]["details"]["generated_tokens"] == 2000
    assert frames[-1]["details"]["finish_reason"] == "length"
    assert await process.exit_code() == 0
    await process.leaves_nothing()


async def test_ctrl_c_while_the_engine_starts_leaves_nothing(
    tiny_model: Path, engine_environment: dict[str, str]
) -> None:
    async with gateway_process(tiny_model, *ROOMY, environment=engine_environment) as process:
        port = await process.port()
        assert (await health(port, "live")).status == 200
        assert (await health(port, "ready")).status == 503
        await eventually(lambda: bool(process.children()), within=60.0, what="it has a child")
        process.interrupt()
        assert await process.exit_code() == 0
        await process.leaves_nothing()
        assert b"Traceback" not in process.output


async def test_preempted_requests_go_on_where_they_were(herd: Herd) -> None:
    """Three texts do not fit into the KV cache at once: one of them has to wait again."""
    port = await herd.cramped.ready()

    async def text(number: int) -> tuple[str, list[int]]:
        async with streaming(port, f"Number {number}", max_new_tokens=300) as stream:
            frames, complete = await stream.rest()
        assert complete
        assert [f["details"]["generated_tokens"] for f in frames] == list(range(1, 301))
        waits = [frame["details"]["queue_wait_time"] for frame in frames[1:]]
        return "".join(frame["text_output"] for frame in frames), waits

    alone = [await text(number) for number in range(3)]
    together = await asyncio.gather(*(text(number) for number in range(3)))
    assert all(wait == 0 for _, waits in alone for wait in waits)
    assert any(wait > 0 for _, waits in together for wait in waits), "nothing was preempted"
    assert [answer for answer, _ in together] == [answer for answer, _ in alone]


async def test_without_priority_scheduling_priorities_are_accepted_and_counted(herd: Herd) -> None:
    port = await herd.cramped.ready()
    body = {"text_input": PROMPT, "parameters": {"priority": 1, "max_new_tokens": 2}}
    for _ in range(2):
        response = await post(port, body)
        assert response.status == 200
        assert len(response.frames) == 2
    metrics = (await get(port, "/metrics")).body.decode()
    assert "mindie_gateway_priority_ignored_total 2.0" in metrics
    assert herd.cramped.output.count(b"--scheduling-policy priority") == 1, "said once"


async def test_the_clients_trace_goes_through_the_gateway_to_vllm(herd: Herd) -> None:
    trace, parent = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
    port = await herd.cramped.ready()
    body = {"text_input": PROMPT, "parameters": {"max_new_tokens": 3}}
    header = f"traceparent: 00-{trace}-{parent}-01"
    assert (await post(port, body, headers=(header,))).complete
    await eventually(
        lambda: len(herd.collector.trace(trace)) == 2, within=20.0, what="both spans are there"
    )
    spans = herd.collector.trace(trace)
    ours, vllms = spans["POST /v2/models/{model}/generate_stream"], spans["llm_request"]
    assert ours.parent_span_id.hex() == parent
    assert vllms.parent_span_id == ours.span_id
    known = {each.key: each.value for each in vllms.attributes}
    assert known["gen_ai.usage.completion_tokens"].int_value == 3
    assert all(PROMPT not in str(span) for span in spans.values())
