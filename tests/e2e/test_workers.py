"""Two workers: on one real engine, and in front of a real vLLM server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.e2e.herd import ROOMY, SPREAD
from tests.e2e.process import GatewayProcess, gateway_process, serve_process
from tests.e2e.remote import RemoteGateway
from tests.e2e.support import E2E
from tests.support import STOP_PATH, Connection, generate_body, get, get_bytes, post, request_bytes
from tests.workers import at_worker, begin_stream, outcomes, total

pytestmark = E2E

JSON = ("Content-Type: application/json",)
TOKENS = 120
LONG = 400
ENDLESS = 4000


async def stream(client: Connection, number: int, tokens: int = TOKENS) -> list[int]:
    """The batch sizes of a whole stream."""
    body = generate_body(f"number {number}", tokens, details=True)
    client.send(request_bytes(body))
    frames = (await client.response()).frames
    assert [frame["details"]["generated_tokens"] for frame in frames] == list(
        range(1, len(frames) + 1)
    )
    return [frame["details"]["batch_size"] for frame in frames]


async def both_at_work(port: int, one: Connection, other: Connection) -> None:
    """Streams at both at once: each token comes once, and the figures are of all."""
    batches = await asyncio.gather(stream(one, 1), stream(other, 2))
    generated = sum(map(len, batches))
    pages = [(await c.ask(get_bytes("/metrics"))).body.decode() for c in (one, other)]
    for page in pages:
        assert total(page, "mindie_gateway_workers") == 2
        assert total(page, "mindie_gateway_ready") == 1
        done = outcomes(page)
        assert done.keys() == {"succeeded"}
        received = total(page, "mindie_gateway_requests_received_total")
        assert received == done["succeeded"]
        # Those that looked for a worker made one token each.
        looked = done["succeeded"] - 2
        assert total(page, "mindie_gateway_generated_tokens_total") == generated + looked
    assert max(batches[0]) == max(batches[1]) == 2


async def stop_across(one: Connection, other: Connection) -> None:
    """A stream at one worker, stopped at the other."""
    await begin_stream(one, "far", ENDLESS)
    stopped = await other.ask(request_bytes({"id": "far"}, STOP_PATH))
    assert stopped.status == 200
    assert (await one.response_body()).complete


@asynccontextmanager
async def two_on_one_engine(
    model: Path, environment: dict[str, str], *flags: str
) -> AsyncIterator[tuple[GatewayProcess, int]]:
    """Two workers that are ready, and their port."""
    words = (*ROOMY, "--workers", "2", *flags)
    async with gateway_process(model, *words, environment={**environment, **SPREAD}) as process:
        port = await process.port()
        assert (await get(port, "/v2/health/live")).status == 200
        assert (await get(port, "/v2/health/ready")).status == 503
        assert await process.workers_ready(2) == port
        yield process, port


async def test_two_workers_on_one_engine(
    tiny_model: Path, engine_environment: dict[str, str]
) -> None:
    flags = ("--mindie-metrics", "--drain-timeout", "120")
    async with two_on_one_engine(tiny_model, engine_environment, *flags) as (process, port):
        async with at_worker(port, 0) as one, at_worker(port, 1) as other:
            await both_at_work(port, one, other)
            page = (await get(port, "/metrics")).body.decode()
            # vLLM's own counters add up as well, and its gauges are not stale.
            ours = total(page, "mindie_gateway_generated_tokens_total")
            assert total(page, "vllm:generation_tokens_total") == ours
            assert total(page, "generation_tokens_total") == ours
            assert total(page, "vllm:num_requests_running") == 0
            assert total(page, "mindie_gateway_requests_running") == 0
            assert total(page, "vllm:cache_config_info") == 1
            await stop_across(one, other)
            await stop_across(other, one)
            openai = {"model": "llama3-70b", "prompt": "one", "max_tokens": 2}
            for client in (one, other):
                answer = await client.ask(request_bytes(openai, "/v1/completions", headers=JSON))
                assert answer.json["usage"]["completion_tokens"] == 2
            await begin_stream(one, "a", LONG)
            await begin_stream(other, "b", LONG)
            running = total(
                (await get(port, "/metrics")).body.decode(), "mindie_gateway_requests_running"
            )
            assert running == 2
            process.terminate()
            await process.says(b"state: the server is shutting down", times=2)
            assert (await post(port, generate_body())).status == 503
            for client in (one, other):
                assert (await client.response_body()).complete
        assert await process.exit_code() == 0
        await process.leaves_nothing()
        assert b"Traceback" not in process.output


async def test_the_death_of_the_engine_ends_the_streams_of_all(
    tiny_model: Path, engine_environment: dict[str, str]
) -> None:
    async with two_on_one_engine(tiny_model, engine_environment) as (process, port):
        async with at_worker(port, 0) as one, at_worker(port, 1) as other:
            for client in (one, other):
                await begin_stream(client, "broken", ENDLESS)
            process.engine().kill()
            for client in (one, other):
                rest = await client.response_body()
                assert not rest.complete
                assert rest.frames[-1]["err_msg"] == "the engine died"
        assert await process.exit_code() == 1
        await process.leaves_nothing()


async def test_the_death_of_a_worker_ends_all_when_the_others_are_done(
    tiny_model: Path, engine_environment: dict[str, str]
) -> None:
    async with two_on_one_engine(tiny_model, engine_environment) as (process, port):
        async with at_worker(port, 0) as one, at_worker(port, 1) as other:
            await begin_stream(one, "goes-on", LONG)
            await begin_stream(other, "broken", ENDLESS)
            process.worker(1).kill()
            assert not (await other.response_body()).complete
            assert (await one.response_body()).complete
        assert await process.exit_code() == 4
        await process.leaves_nothing()
        assert b"nobody can take its place at the engines" in process.output


async def test_two_workers_in_front_of_a_real_server(
    remote: RemoteGateway, engine_environment: dict[str, str]
) -> None:
    words = ("--upstream", remote.url, "--workers", "2", "--port", "0")
    async with serve_process(*words, environment=engine_environment) as process:
        port = await process.workers_ready(2)
        async with at_worker(port, 0) as one, at_worker(port, 1) as other:
            batches = await asyncio.gather(stream(one, 1, 30), stream(other, 2, 30))
            assert all(batch >= 1 for each in batches for batch in each)
            await stop_across(one, other)
            page = (await get(port, "/metrics")).body.decode()
            assert outcomes(page).keys() == {"succeeded"}
            received = total(page, "mindie_gateway_requests_received_total")
            assert received == sum(outcomes(page).values())
        process.terminate()
        assert await process.exit_code() == 0
