"""Several workers behind one port, as an operator has them: real processes and signals."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import orjson
import pytest

from proxy.crew import ASK_WITHIN
from proxy.exit_codes import EXIT_BIND, EXIT_ENGINE, EXIT_OK, EXIT_USAGE, EXIT_WORKERS
from proxy.workers import RESTARTS
from tests.fake_vllm import FakeVllm, fake_vllm
from tests.proxy.test_lifecycle import WITHIN, Served, process
from tests.support import (
    MODEL,
    STOP_PATH,
    eventually,
    generate_body,
    get,
    get_bytes,
    post,
    request_bytes,
)
from tests.workers import at_worker, begin_stream, outcomes, total


@asynccontextmanager
async def two_workers(
    server: FakeVllm, *arguments: str, ready: bool = True
) -> AsyncIterator[Served]:
    """Two of them in front of `server`."""
    given = ("--upstream", server.url, "--workers", "2", "--upstream-check-period", "0.1")
    async with process(*given, *arguments, model=None) as served:
        if ready:
            await eventually(lambda: served.log.count("state: ready") == 2, lambda: served.log)
        yield served


async def eventually_asked(port: int, path: str, wanted: Callable[[str, int], bool]) -> str:
    """Ask until the answer is as wanted."""
    async with asyncio.timeout(WITHIN):
        while True:
            answer = await get(port, path)
            if wanted(answer.body.decode(), answer.status):
                return answer.body.decode()
            await asyncio.sleep(0.01)


def pid_of(served: Served, index: int) -> int:
    """The process that is this worker now."""
    return int(re.findall(rf"worker {index} of 2 has process (\d+)", served.log)[-1])


async def test_both_serve_and_every_one_shows_the_figures_of_all() -> None:
    async with (
        fake_vllm(names=(MODEL,)) as server,
        two_workers(server, "--mindie-metrics") as served,
        at_worker(served.port, 0) as one,
        at_worker(served.port, 1) as other,
    ):
        before = outcomes((await one.ask(get_bytes("/metrics"))).body.decode())["succeeded"]
        for client, number in ((one, 3), (other, 4)):
            for _ in range(number):
                assert (await client.ask(request_bytes(generate_body(tokens=3)))).complete
        assert (await other.ask(request_bytes(b"{"))).status == 422
        pages = [await client.ask(get_bytes("/metrics")) for client in (one, other)]
        for page in (each.body.decode() for each in pages):
            assert outcomes(page) == {"succeeded": before + 7, "refused": 1}
            received = total(page, "mindie_gateway_requests_received_total")
            assert received == sum(outcomes(page).values())
            first_token = "mindie_gateway_time_to_first_token_seconds"
            assert total(page, f"{first_token}_count") == before + 7
            assert total(page, f"{first_token}_bucket", 'le="+Inf"') == before + 7
            assert total(page, "generation_tokens_total") == before + 21
            assert total(page, "failed_request_perc") == pytest.approx(1 / (before + 8))
            assert total(page, "mindie_gateway_workers") == 2
            assert total(page, "mindie_gateway_ready") == 1
            assert total(page, "mindie_gateway_worker_restarts_total") == 0
        assert len(re.findall("listening on", served.log)) == 1
        served.signal()
        assert await served.exit_code() == EXIT_OK
        ids = re.findall(r" id=(endpoint_common_\d+) ", served.log)
        assert len(ids) == len(set(ids)) == before + 7


async def test_stop_infer_and_the_drain_reach_every_worker() -> None:
    async with (
        fake_vllm(names=(MODEL,)) as server,
        two_workers(server, "--management-port=0", "--stop-service") as served,
        at_worker(served.port, 0) as one,
        at_worker(served.port, 1) as other,
        at_worker(served.port, 0) as third,
    ):
        server.gate.clear()
        await begin_stream(one, "first")
        await begin_stream(other, "second")
        # Asked at worker 0, it ends the stream of worker 1.
        stopped = await third.ask(request_bytes({"id": "second"}, STOP_PATH))
        assert (stopped.status, stopped.json) == (200, {"id": "second"})
        assert (await other.response_body()).complete
        again = await third.ask(request_bytes({"id": "second"}, STOP_PATH))
        assert again.status == 500

        await begin_stream(other, "third")
        # Asked of one, both stop.
        assert (await get(served.port_of("management"), "/stopService")).status == 200
        await eventually(lambda: served.log.count("state: the server is shutting down") == 2)
        assert (await third.ask(request_bytes(generate_body()))).status == 503
        assert (await post(served.port, generate_body())).status == 503
        server.gate.set()
        for client in (one, other):
            assert (await client.response_body()).complete
        assert await served.exit_code() == EXIT_OK
        assert "Traceback" not in served.log


@contextmanager
def frozen(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


async def test_a_frozen_worker_does_not_stop_later_what_it_was_asked_to_stop() -> None:
    async with (
        fake_vllm(names=(MODEL,)) as server,
        two_workers(server) as served,
        at_worker(served.port, 0) as asking,
        at_worker(served.port, 1) as other,
    ):
        server.gate.clear()
        await begin_stream(other, "frozen")
        with frozen(pid_of(served, 1)):
            answer = await asking.ask(request_bytes({"id": "frozen"}, STOP_PATH))
        assert (answer.status, answer.json["error"]) == (503, "a worker does not answer")
        # It takes questions in their order.
        page = (await asking.ask(get_bytes("/metrics"))).body.decode()
        assert total(page, "mindie_gateway_workers") == 2
        server.gate.set()
        rest = await other.response_body()
        assert rest.complete
        assert len(rest.frames) == 2


async def test_a_worker_that_dies_is_started_anew_and_the_books_still_balance() -> None:
    async with fake_vllm(names=(MODEL,)) as server, two_workers(server) as served:
        async with at_worker(served.port, 0) as one, at_worker(served.port, 1) as other:
            server.gate.clear()
            await begin_stream(one, "lives")
            await begin_stream(other, "dies")
            before = (await get(served.port, "/metrics")).body.decode()
            assert total(before, "mindie_gateway_requests_in_flight") == 2
            os.kill(pid_of(served, 1), signal.SIGKILL)
            assert not (await other.response_body()).complete
            server.gate.set()
            assert (await one.response_body()).complete
            page = await eventually_asked(
                served.port, "/metrics", lambda text, _: total(text, "mindie_gateway_ready") == 1
            )
        assert total(page, "mindie_gateway_worker_restarts_total") == 1
        assert outcomes(page) == {"succeeded": outcomes(before)["succeeded"] + 1, "failed": 1}
        received = total(page, "mindie_gateway_requests_received_total")
        assert received == total(before, "mindie_gateway_requests_received_total")
        assert "worker 1 died by signal 9" in served.log
        async with at_worker(served.port, 1) as again:
            assert (await again.ask(request_bytes(generate_body()))).complete


async def test_the_books_balance_after_each_death_in_the_same_place() -> None:
    async with fake_vllm(names=(MODEL,)) as server, two_workers(server) as served:
        for deaths in (1, 2, 3):
            async with at_worker(served.port, 0) as one, at_worker(served.port, 0) as other:
                server.gate.clear()
                await begin_stream(one, "dies")
                await begin_stream(other, "too")
                page = (await get(served.port, "/metrics")).body.decode()
                received = total(page, "mindie_gateway_requests_received_total")
                os.kill(pid_of(served, 0), signal.SIGKILL)
                for client in (one, other):
                    assert not (await client.response_body()).complete
                server.gate.set()
            page = await eventually_asked(served.port, "/metrics", whole_after(deaths))
            assert total(page, "mindie_gateway_requests_received_total") == received
            assert outcomes(page)["failed"] == 2 * deaths
            assert sum(outcomes(page).values()) == received


def whole_after(restarts: int) -> Callable[[str, int], bool]:
    """Whether a page is that of all workers, after so many died."""

    def whole(page: str, _: int) -> bool:
        started = total(page, "mindie_gateway_worker_restarts_total") == restarts
        return started and total(page, "mindie_gateway_ready") == 1

    return whole


async def test_workers_that_die_again_and_again_end_the_process() -> None:
    async with fake_vllm(names=(MODEL,)) as server, two_workers(server) as served:
        for number in range(RESTARTS + 1):
            dead = pid_of(served, number % 2)
            os.kill(dead, signal.SIGKILL)
            await eventually(lambda: served.log.count("died by signal 9") == number + 1)  # noqa: B023
            if number < RESTARTS:
                await eventually(lambda: pid_of(served, number % 2) != dead)  # noqa: B023
        assert await served.exit_code() == EXIT_WORKERS
        assert "workers die again and again" in served.log


async def test_signals_reach_all_and_the_second_one_ends_them_at_once(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text(f"alice sha256:{'0' * 64}\n")
    async with (
        fake_vllm(names=(MODEL,)) as server,
        two_workers(server, f"--management-keys-file={keys}") as served,
        at_worker(served.port, 1) as client,
    ):
        server.gate.clear()
        await begin_stream(client, "runs")
        served.signal(signal.SIGHUP)
        await eventually(lambda: served.log.count("management keys read again") == 2)
        # A terminal or systemd would send it to each of them.
        os.kill(pid_of(served, 0), signal.SIGTERM)
        os.kill(pid_of(served, 1), signal.SIGINT)
        served.signal()
        await eventually(lambda: served.log.count("state: the server is shutting down") == 2)
        served.signal(signal.SIGINT)
        assert await served.exit_code() == EXIT_OK
        assert not (await client.response_body()).complete


async def test_without_their_parent_they_end_and_leave_the_port() -> None:
    async with fake_vllm(names=(MODEL,)) as server, two_workers(server) as served:
        served.signal(signal.SIGKILL)
        assert await served.exit_code() == -signal.SIGKILL
        async with asyncio.timeout(WITHIN):
            while True:
                try:
                    socket.create_server(("127.0.0.1", served.port)).close()
                except OSError:
                    await asyncio.sleep(0.01)
                else:
                    break


async def test_each_has_its_part_of_the_places_and_ready_means_that_one_is_free() -> None:
    limits = ("--max-requests", "3", "--max-running", "2")
    async with (
        fake_vllm(names=(MODEL,)) as server,
        two_workers(server, *limits) as served,
        at_worker(served.port, 1) as at_one,
        at_worker(served.port, 0) as at_zero,
        at_worker(served.port, 0) as queued,
        at_worker(served.port, 0) as asking,
        at_worker(served.port, 1) as refused,
    ):
        server.gate.clear()
        await begin_stream(at_one, "a")
        answer = await refused.ask(request_bytes(generate_body()))
        assert (answer.status, answer.headers["retry-after"]) == (503, "1")
        assert (await get(served.port, "/v2/health/ready")).status == 200
        await begin_stream(at_zero, "b")
        # The third one is worker 0's, and waits there.
        queued.send(request_bytes({**generate_body(), "id": "c"}))
        await eventually_asked(served.port, "/v2/health/ready", lambda _, status: status == 503)
        # Its prompt is counted first, which takes a place as well.
        await eventually_asked(
            served.port,
            "/metrics",
            lambda page, _: total(page, "mindie_gateway_requests_waiting") == 1,
        )
        assert (await asking.ask(request_bytes(generate_body()))).status == 503
        server.gate.set()
        assert (await queued.response()).complete


async def test_what_is_wrong_for_one_is_wrong_for_all() -> None:
    async with fake_vllm(names=(MODEL,)) as server:
        async with two_workers(server, "--api-keys=nonsense", ready=False) as served:
            assert await served.exit_code() == EXIT_USAGE
            assert "service keys: key 1 is not of the form" in served.log
        async with two_workers(server) as served:
            port = str(served.port)
            # Neither one process nor several may share the port with these.
            async with two_workers(server, "--port", port, ready=False) as late:
                assert await late.exit_code() == EXIT_BIND
            async with process("--port", port) as late:
                assert await late.exit_code() == EXIT_BIND
            slots = await get(served.port, f"/v2/models/{MODEL}/getSlotCount")
            assert orjson.loads(slots.body)["total_slots"] == 256


# With an engine of their own, in a third process.


@asynccontextmanager
async def two_on_an_engine(
    *arguments: str, model: str = "obedient", ready: int = 2
) -> AsyncIterator[Served]:
    async with process("--workers", "2", *arguments, model=model) as served:
        await eventually(lambda: served.log.count("state: ready") >= ready, lambda: served.log)
        yield served


def pid_of_the_host(served: Served) -> int:
    return int(re.findall(r"the engines have process (\d+)", served.log)[0])


def request(text: str, tokens: int = 50) -> bytes:
    return request_bytes(generate_body(text, tokens))


async def test_the_engines_death_ends_the_streams_of_all_and_then_all() -> None:
    async with (
        two_on_an_engine() as served,
        at_worker(served.port, 0) as one,
        at_worker(served.port, 1) as other,
    ):
        for client in (one, other):
            client.send(request("wait"))
            await client.head()
            assert await client.chunk()
        os.kill(pid_of_the_host(served), signal.SIGKILL)
        for client in (one, other):
            rest = await client.response_body()
            assert not rest.complete
            assert rest.frames[-1]["err_msg"] == "the engine died"
        assert await served.exit_code() == EXIT_ENGINE


async def test_told_to_stay_they_answer_503_without_an_engine() -> None:
    async with two_on_an_engine("--stay-after-engine-death") as served:
        os.kill(pid_of_the_host(served), signal.SIGKILL)
        await eventually(lambda: served.log.count("state: the engine has died") == 2)
        assert (await post(served.port, generate_body())).status == 503
        served.signal()
        assert await served.exit_code() == EXIT_ENGINE


async def test_nobody_takes_the_place_of_a_dead_worker_at_an_engine() -> None:
    async with (
        two_on_an_engine() as served,
        at_worker(served.port, 0) as one,
        at_worker(served.port, 1) as other,
    ):
        one.send(request("slowly"))
        await one.head()
        other.send(request("wait"))
        await other.head()
        os.kill(pid_of(served, 1), signal.SIGKILL)
        assert not (await other.response_body()).complete
        assert (await one.response_body()).complete
        assert await served.exit_code() == EXIT_WORKERS
        assert "nobody can take its place" in served.log


@pytest.mark.parametrize("killed", [True, False])
async def test_nobody_waits_for_the_answer_of_a_worker_that_has_ended(killed: bool) -> None:
    async with (
        two_on_an_engine() as served,
        at_worker(served.port, 0) as one,
        at_worker(served.port, 0) as asking,
    ):
        one.send(request_bytes({**generate_body("wait", 50), "id": "goes-on"}))
        await one.head()
        if killed:
            os.kill(pid_of(served, 1), signal.SIGKILL)
            await served.says("worker 1 died")
        else:
            served.signal()
            await served.says("state: stopped")
        asked = time.monotonic()
        answer = await asking.ask(request_bytes({"id": "goes-on"}, STOP_PATH))
        assert answer.status == 200
        assert time.monotonic() - asked < ASK_WITHIN / 2
        assert (await one.response_body()).complete
        assert await served.exit_code() == (EXIT_WORKERS if killed else EXIT_OK)


async def test_what_a_worker_counts_last_is_not_lost_when_it_ends_before_the_others() -> None:
    async with (
        two_on_an_engine() as served,
        at_worker(served.port, 0) as one,
        at_worker(served.port, 0) as asking,
        at_worker(served.port, 1) as other,
    ):
        for client, text in ((one, "wait"), (other, "slowly")):
            client.send(request_bytes({**generate_body(text, 20), "id": "both"}))
            await client.head()
        before = (await asking.ask(get_bytes("/metrics"))).body.decode()
        served.signal()
        assert (await other.response_body()).complete
        await served.says("state: stopped")
        page = (await asking.ask(get_bytes("/metrics"))).body.decode()
        received = total(page, "mindie_gateway_requests_received_total")
        assert received == total(before, "mindie_gateway_requests_received_total")
        assert outcomes(page) == {"succeeded": received - 1}
        assert total(page, "mindie_gateway_requests_in_flight") == 1
        assert (await asking.ask(request_bytes({"id": "both"}, STOP_PATH))).status == 200
        assert (await one.response_body()).complete
        assert await served.exit_code() == EXIT_OK


async def test_the_books_balance_without_the_worker_that_died_at_an_engine() -> None:
    async with (
        two_on_an_engine() as served,
        at_worker(served.port, 0) as one,
        at_worker(served.port, 0) as asking,
        at_worker(served.port, 1) as other,
    ):
        for client in (one, other):
            client.send(request_bytes({**generate_body("wait", 50), "id": "both"}))
            await client.head()
        page = before = (await asking.ask(get_bytes("/metrics"))).body.decode()
        os.kill(pid_of(served, 1), signal.SIGKILL)
        async with asyncio.timeout(WITHIN):
            while "failed" not in outcomes(page):
                page = (await asking.ask(get_bytes("/metrics"))).body.decode()
        received = total(page, "mindie_gateway_requests_received_total")
        assert received == total(before, "mindie_gateway_requests_received_total")
        # One goes on.
        assert outcomes(page) == {"succeeded": received - 2, "failed": 1}
        assert total(page, "mindie_gateway_requests_in_flight") == 1
        assert (await asking.ask(request_bytes({"id": "both"}, STOP_PATH))).status == 200
        assert await served.exit_code() == EXIT_WORKERS


async def test_engines_that_refuse_their_options_say_so_once() -> None:
    async with two_on_an_engine(model="unheard-of", ready=0) as served:
        assert await served.exit_code() == EXIT_USAGE
        assert served.log.count("there is no such engine") == 1
        assert "has died" not in served.log


async def test_a_stop_while_the_engines_start_is_heeded_at_once() -> None:
    async with two_on_an_engine(model="never-starts", ready=0) as served:
        await served.says("worker 1 of 2 has process")
        served.signal()
        assert await served.exit_code() == EXIT_OK
