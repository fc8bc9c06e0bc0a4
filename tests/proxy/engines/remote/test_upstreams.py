"""One engine of several servers: who gets what, who is taken out, what is told of them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from tests.fake_vllm import EVENT_STREAM, METRICS, NEW, OLD, Call, FakeVllm, Tokenizer, fake_vllm
from tests.proxy.engines.remote.sidecar import Sidecar, ask, sidecar
from tests.support import (
    MODEL,
    STOP_PATH,
    Connection,
    connection,
    eventually,
    frame_json,
    generate_body,
    get,
    post,
    request_bytes,
)

BODY = generate_body("one two", 3, details=True)


@asynccontextmanager
async def two(**options: Any) -> AsyncIterator[tuple[Sidecar, FakeVllm, FakeVllm]]:
    """A gateway in front of two servers that are both up."""
    model: dict[str, Any] = {"names": (MODEL,), "tokenizer": Tokenizer()}
    async with (
        fake_vllm(**model) as one,
        fake_vllm(**model) as other,
        sidecar(one, other, options=options) as opened,
    ):
        await eventually(lambda: all(upstream.up for upstream in opened.engine._upstreams))
        yield opened, one, other


async def opened_stream(stack: AsyncExitStack, opened: Sidecar, name: str) -> Connection:
    """A stream that has got its first token."""
    client = await stack.enter_async_context(connection(opened.port))
    client.send(request_bytes({"id": name, **generate_body("one two", 50, details=True)}))
    assert (await client.head()).status == 200
    await client.chunk()
    return client


async def test_the_server_with_the_fewest_outstanding_requests_gets_the_next() -> None:
    async with two() as (opened, one, other), AsyncExitStack() as stack:
        one.gate.clear()
        other.gate.clear()
        for number in range(6):
            await opened_stream(stack, opened, f"r{number}")
        assert (len(one.live), len(other.live)) == (3, 3)
        one.gate.set()
        await eventually(lambda: not one.live)
        for number in range(2):
            one.gate.clear()
            await opened_stream(stack, opened, f"later{number}")
        assert (len(one.live), len(other.live)) == (2, 3)
        other.gate.set()
        one.gate.set()


async def test_servers_that_are_equally_idle_take_turns() -> None:
    async with two() as (opened, one, other):
        for _ in range(6):
            assert (await ask(opened)).complete
        assert len(one.calls) == len(other.calls) == 3


async def test_a_server_that_is_gone_is_taken_out_and_put_back() -> None:
    async with two() as (opened, one, other):
        await one.stop()
        for _ in range(4):
            assert (await ask(opened)).complete, "nobody notices"
        assert len(other.calls) == 4
        assert (await get(opened.port, "/v2/health/ready")).status == 200
        await one.start()
        await eventually(lambda: all(upstream.up for upstream in opened.engine._upstreams))
        for _ in range(4):
            assert (await ask(opened)).complete
        assert len(one.calls) == 2


async def test_a_request_goes_on_to_another_server_when_its_connection_fails() -> None:
    async with two(check_period=60.0) as (opened, one, other):
        one.answer = _reset
        other.answer = None
        for _ in range(4):
            assert (await ask(opened)).complete
        assert len(other.calls) == 4


async def _reset(call: Call) -> None:
    call.reset()


async def test_a_server_that_says_it_is_not_well_gets_no_more_work() -> None:
    async with two() as (opened, one, other):
        one.healthy = False
        await eventually(lambda: not opened.engine._upstreams[0].up)
        for _ in range(3):
            assert (await ask(opened)).complete
        assert (len(one.calls), len(other.calls)) == (0, 3)


async def test_refusals_are_no_fault_of_the_server() -> None:
    """4xx and clients that leave do not take it out (nor is the request tried elsewhere)."""

    async def refuse(call: Call) -> None:
        await call.send(b"HTTP/1.1 400 X\r\ncontent-length: 0\r\n\r\n")

    async with two() as (opened, one, other):
        one.answer = other.answer = refuse
        for _ in range(4):
            assert (await ask(opened)).status == 424
        assert len(one.calls) + len(other.calls) == 4
        assert all(upstream.up for upstream in opened.engine._upstreams)


async def test_stop_infer_finds_the_right_server() -> None:
    async with two() as (opened, one, other), AsyncExitStack() as stack:
        one.gate.clear()
        other.gate.clear()
        clients = {name: await opened_stream(stack, opened, name) for name in ("a", "b")}
        path = STOP_PATH
        assert (await post(opened.port, {"id": "a"}, path)).status == 200
        last = frame_json(await clients["a"].chunk())
        assert last["details"]["finish_reason"] == "stop_sequence"
        await eventually(lambda: len(one.live) + len(other.live) == 1)
        one.gate.set()
        other.gate.set()
        assert (await clients["b"].response_body()).complete


async def test_priorities_are_passed_on() -> None:
    async with sidecar() as opened:
        await ask(opened, priority=1)
        await ask(opened)
        assert [call.document["priority"] for call in opened.server.calls] == [-4, 0]


async def test_a_server_without_priorities_gets_none_and_that_is_counted() -> None:
    async with fake_vllm(names=(MODEL,), takes_priority=False) as server, sidecar(server) as opened:
        assert (await ask(opened, priority=1)).complete
        assert "priority" not in server.calls[0].document
        assert opened.running.metric("mindie_gateway_priority_ignored_total") == 1


async def test_the_operator_can_keep_priorities_back() -> None:
    async with sidecar(options={"priority": False}) as opened:
        await ask(opened, priority=1)
        assert "priority" not in opened.server.calls[0].document


async def test_before_any_server_is_up_it_is_alive_and_not_ready() -> None:
    server = FakeVllm(names=(MODEL,))
    await server.start()
    await server.stop()
    async with sidecar(server, started=False) as opened:
        starting = asyncio.create_task(opened.running.gateway.start_engine(lambda reason: None))
        assert (await get(opened.port, "/v2/health/live")).status == 200
        assert (await get(opened.port, "/v2/health/ready")).status == 503
        refused = await post(opened.port, BODY)
        assert refused.status == 503
        assert refused.json["error_type"] == "Service Unavailable"

        await server.start()
        async with asyncio.timeout(2):
            await starting
        assert (await get(opened.port, "/v2/health/ready")).status == 200
        assert (await post(opened.port, BODY)).complete
    await server.stop()


async def test_when_all_servers_are_gone_it_waits_for_them() -> None:
    async with sidecar() as opened, AsyncExitStack() as stack:
        opened.server.gate.clear()
        client = await opened_stream(stack, opened, "running")
        await opened.server.stop()
        broken = await client.response_body()
        assert not broken.complete
        assert broken.frames[-1]["err_msg"]
        await eventually(lambda: not opened.engine.available, within=2)
        assert (await get(opened.port, "/v2/health/ready")).status == 503
        assert (await get(opened.port, "/v2/health/live")).status == 200
        assert (await post(opened.port, BODY)).status == 503
        assert not opened.running.deaths, "the process stays"

        opened.server.gate.set()
        await opened.server.start()
        await eventually(lambda: opened.engine.available, within=2)
        assert (await post(opened.port, BODY)).complete


async def test_a_server_with_another_model_is_not_used(caplog: pytest.LogCaptureFixture) -> None:
    async with (
        fake_vllm(names=(MODEL, "alias")) as right,
        fake_vllm(names=("another",)) as wrong,
        fake_vllm(names=(MODEL, "alias"), max_model_len=100) as small,
        sidecar(right) as opened,
    ):
        for server in (wrong, small):
            opened.engine._add(server.url)
        await eventually(lambda: "/tokenize" in wrong.asked and "/tokenize" in small.asked)
        await eventually(lambda: "it serves another" in caplog.text)
        await eventually(lambda: "its context is 100" in caplog.text)
        for _ in range(3):
            assert (await ask(opened)).complete
    assert not wrong.calls
    assert not small.calls
    assert caplog.text.count("it serves another") == 1, "said once, not every period"


async def test_what_a_server_lacks_is_told_once_at_start(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with (
        fake_vllm(
            version=NEW, names=(MODEL,), token_ids=False, takes_priority=False, detokenizes=False
        ) as server,
        sidecar(server),
    ):
        pass
    for word in ("0.32.0", "token ids", "queue time", "/detokenize", "generation_config", "prior"):
        assert word in caplog.text, word


async def test_a_server_that_has_everything_lacks_nothing(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with fake_vllm(version=OLD, names=(MODEL,)) as old, sidecar(old):
        pass
    async with fake_vllm(version=NEW, names=(MODEL,), queue_time_ms=1.0) as new, sidecar(new):
        pass
    lines = [r.getMessage() for r in caplog.records if "does not offer" in r.getMessage()]
    assert [("queue time" in line, "generation_config" in line) for line in lines] == [
        (True, False),
        (False, True),
    ]


@pytest.mark.parametrize(
    ("told", "temperature", "top_k"),
    [({"temperature": 0.6, "top_k": 20}, 0.6, 20), ({}, 0.0, 0)],
    ids=["a model that wants to be sampled", "a model that says nothing"],
)
async def test_defaults_that_a_server_tells_are_the_models(
    told: dict[str, float], temperature: float, top_k: int
) -> None:
    async with (
        fake_vllm(version=OLD, names=(MODEL,), sampling_defaults=told) as server,
        sidecar(server) as opened,
    ):
        await ask(opened)
        document = server.calls[0].document
        assert (document["temperature"], document["top_k"]) == (temperature, top_k)


async def test_defaults_that_it_does_not_tell_are_left_to_it() -> None:
    async with sidecar() as opened:
        await ask(opened, temperature=0.7)
        document = opened.server.calls[0].document
        assert document["temperature"] == 0.7
        assert not {"top_k", "top_p", "repetition_penalty"} & set(document)


def figures(**values: float) -> str:
    """A metrics page with some other values."""
    page = METRICS
    for name, value in values.items():
        (line,) = [line for line in page.splitlines() if line.startswith(f"vllm:{name}{{")]
        page = page.replace(line, f"{line.rpartition(' ')[0]} {value}")
    return page


async def test_the_other_routes_tell_what_the_servers_tell() -> None:
    async with (
        fake_vllm(names=(MODEL,), metrics=METRICS) as server,
        sidecar(server) as opened,
    ):
        slots = (await get(opened.port, f"/v2/models/{MODEL}/getSlotCount")).json
        assert slots["total_slots"] == 256
        assert slots["available_tokens_length"] == 363 * 128
        config = (await get(opened.port, f"/v2/models/{MODEL}/config")).json
        assert config["max_seq_len"] == 2048
        assert config["model_weight_path"] == "smol"
        assert config["world_size"] is None, "no server tells it"


async def test_without_telling_servers_the_queue_wait_is_0() -> None:
    async with sidecar() as opened:
        response = await post(opened.port, BODY)
        assert {frame["details"]["queue_wait_time"] for frame in response.frames} == {0}


async def test_a_server_that_tells_each_wait_has_it_in_the_last_frame() -> None:
    async with (
        fake_vllm(names=(MODEL,), queue_time_ms=12.5, metrics=METRICS) as server,
        sidecar(server) as opened,
    ):
        response = await post(opened.port, BODY)
        waits = [frame["details"]["queue_wait_time"] for frame in response.frames]
        assert waits == [0, 0, 12500]


async def test_otherwise_it_is_the_mean_of_those_that_ended_lately() -> None:
    async with (
        fake_vllm(names=(MODEL,), metrics=METRICS, pace=0.01) as server,
        sidecar(server) as opened,
    ):
        upstream = opened.engine._upstreams[0]
        await eventually(lambda: upstream.gauges is not None)
        server.metrics = figures(
            request_queue_time_seconds_sum=0.004, request_queue_time_seconds_count=4
        )
        await eventually(lambda: upstream.queue_estimate() == 0.001)

        async def slow_start(call: Call) -> None:
            await call.send(EVENT_STREAM)
            await asyncio.sleep(0.02)
            await call.event(call.tokens([300], "one", reason="length", first=True))
            await call.end()

        server.answer = slow_start
        response = await post(opened.port, BODY)
        assert [frame["details"]["queue_wait_time"] for frame in response.frames] == [1000]


async def test_the_batch_is_ours_and_what_the_server_shows_of_others() -> None:
    async with (
        fake_vllm(names=(MODEL,), metrics=METRICS) as server,
        sidecar(server) as opened,
        AsyncExitStack() as stack,
    ):
        response = await post(opened.port, BODY)
        assert {frame["details"]["batch_size"] for frame in response.frames} == {1}
        server.gate.clear()
        for number in range(2):
            await opened_stream(stack, opened, f"r{number}")
        third = await stack.enter_async_context(connection(opened.port))
        third.send(request_bytes(BODY))
        await third.head()
        assert frame_json(await third.chunk())["details"]["batch_size"] == 3
        server.metrics = figures(num_requests_running=7, num_requests_waiting=2)
        await eventually(lambda: opened.engine.load().running == 7)
        assert opened.engine.load().waiting == 2
        server.gate.set()
        assert frame_json(await third.chunk())["details"]["batch_size"] in (6, 7)


async def test_a_request_before_its_first_token_is_none_of_the_others() -> None:
    """The server counts it as running while it still reads its prompt."""
    read = asyncio.Event()

    async def slow_start(call: Call) -> None:
        await call.send(EVENT_STREAM)
        await read.wait()
        await call.event(call.tokens([300], "one", reason="length", first=True))
        await call.end()

    async with (
        fake_vllm(names=(MODEL,), metrics=METRICS, answer=slow_start) as server,
        sidecar(server) as opened,
        connection(opened.port) as client,
    ):
        client.send(request_bytes(BODY))
        await client.head()
        server.metrics = figures(num_requests_running=1)
        await eventually(lambda: opened.engine.load().running == 1)
        read.set()
        assert frame_json(await client.chunk())["details"]["batch_size"] == 1


async def test_first_token_and_inter_token_times_are_measured_here() -> None:
    async def answer(call: Call) -> None:
        await call.send(EVENT_STREAM)
        await asyncio.sleep(0.05)
        await call.event(call.tokens([300], "one", first=True))
        await asyncio.sleep(0.03)
        await call.event(call.tokens([301], " two", reason="length"))
        await call.end()

    async with sidecar() as opened:
        opened.server.answer = answer
        first, second = (await post(opened.port, BODY)).frames
    assert 45 < first["prefill_time"] < 1000
    assert 25 < second["decode_time"] < 1000
    assert first["decode_time"] is None
    assert second["prefill_time"] is None


async def test_merged_tokens_share_their_time() -> None:
    async def answer(call: Call) -> None:
        ids = call.server.tokenizer.encode(" a b c d")
        await call.send(EVENT_STREAM)
        await call.event(call.tokens(ids[:1], " a", first=True))
        await asyncio.sleep(0.06)
        await call.event(call.tokens(ids[1:], " b c d", reason="length"))
        await call.end()

    async with sidecar() as opened:
        opened.server.answer = answer
        frames = (await post(opened.port, BODY)).frames
    assert [frame["text_output"] for frame in frames] == [" a", " b", " c", " d"]
    times = {frame["decode_time"] for frame in frames[1:]}
    assert len(times) == 1
    assert 15 < times.pop() < 500
    assert [frame["details"]["generated_tokens"] for frame in frames] == [1, 2, 3, 4]


async def test_a_tail_inside_a_character_is_flushed_as_the_contract_says() -> None:
    async with fake_vllm(names=(MODEL,)) as server, sidecar(server) as opened:
        server.script = server.tokenizer.encode(" a 你")[:-1]
        response = await post(opened.port, generate_body("x", 9))
    assert response.texts == [" a", " ", "", "\ufffd"]


async def test_the_end_token_is_counted_and_has_no_text() -> None:
    async with fake_vllm(names=(MODEL,), per_chunk=3) as server, sidecar(server) as opened:
        server.script = [*server.tokenizer.encode(" a b c"), 0]
        response = await post(opened.port, generate_body("x", 9, details=True))
    assert response.texts == [" a", " b", " c", ""]
    last = response.frames[-1]["details"]
    assert (last["generated_tokens"], last["finish_reason"]) == (4, "eos_token")


async def test_every_token_is_observed() -> None:
    """MindIE's metrics see plain tokens as they see all others."""
    async with sidecar(mindie_metrics=True) as opened:
        assert len((await ask(opened, tokens=7)).frames) == 7
        page = (await get(opened.port, "/metrics")).body.decode()
        name = "time_per_output_token_seconds_count"
        (line,) = [line for line in page.splitlines() if line.startswith(name)]
        assert float(line.rpartition(" ")[2]) == 6


async def test_the_log_says_what_a_server_answered(caplog: pytest.LogCaptureFixture) -> None:
    async def refuses(call: Call) -> None:
        await call.send(b"HTTP/1.1 401 X\r\ncontent-length: 0\r\n\r\n")

    async with sidecar(started=False) as opened:
        opened.server.others["/health"] = refuses
        starting = asyncio.create_task(opened.running.gateway.start_engine(lambda _: None))
        await eventually(lambda: "/health answers 401" in caplog.text)
        del opened.server.others["/health"]
        await starting
