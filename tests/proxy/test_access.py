"""API keys at the door of a running gateway."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from proxy.access import Group
from proxy.engines.base import EngineRequest
from proxy.engines.stub import StubEngine
from proxy.routes import ROUTES
from proxy.settings import SettingsError
from tests.support import STREAM_PATH, RawResponse, exchange, request_bytes, serving
from translators.tokens import Finish, FinishReason, Token

pytestmark = pytest.mark.usefixtures("workers")

BODY = {"text_input": "one two", "parameters": {"max_new_tokens": 2}}


def line(name: str, secret: str, options: str = "") -> str:
    return f"{name} sha256:{hashlib.sha256(secret.encode()).hexdigest()} {options}"


async def ask(port: int, *headers: str, path: str = STREAM_PATH) -> RawResponse:
    method = "POST" if path == STREAM_PATH else "GET"
    return await exchange(port, request_bytes(BODY, path, method=method, headers=headers))


def refusal(response: RawResponse) -> tuple[int, str, list[str]]:
    return response.status, response.json["error_type"], sorted(response.json)


@pytest.mark.parametrize(
    "header",
    ["Authorization: Bearer k1", "authorization: bearer  k1 ", "X-Api-Key: k1", "x-api-key: k1"],
)
async def test_a_key_opens_the_service_however_it_is_sent(header: str) -> None:
    async with serving(api_keys=line("alice", "k1")) as running:
        response = await ask(running.port, header)
    assert response.status == 200
    assert response.complete


@pytest.mark.parametrize(
    "headers",
    [
        (),
        ("Authorization: Bearer k2",),
        ("Authorization: Bearer ",),
        ("Authorization: Basic azE=",),
        ("Authorization: k1",),
        ("X-Api-Key: ",),
        ("X-Api-Key: K1",),
        ("Authorization: Bearer k2", "X-Api-Key: k1"),
    ],
)
@pytest.mark.alone
async def test_without_a_known_key_it_is_401_in_the_contracts_shape(
    headers: tuple[str, ...],
) -> None:
    async with serving(api_keys=line("alice", "k1")) as running:
        response = await ask(running.port, *headers)
        counted = running.gateway.metrics.access_refused.labels(401)._value.get()
    assert refusal(response) == (401, "Unauthorized", ["error", "error_type"])
    assert response.headers["www-authenticate"] == "Bearer"
    assert response.headers["content-type"] == "application/json"
    assert len(response.headers["requestuuid"]) == 32
    assert counted == 1


async def test_a_refused_request_never_reaches_the_engine() -> None:
    async with serving(api_keys=line("alice", "k1")) as running:
        await ask(running.port)
        assert running.engine.submitted == []


async def test_health_is_open_and_everything_else_is_not() -> None:
    async with serving(api_keys=line("alice", "k1")) as running:
        for route in ROUTES:
            path = route.path.replace("{model}", "llama3-70b")
            method = "POST" if route.method == "*" else route.method
            raw = request_bytes(BODY, path, method=method)
            status = (await exchange(running.port, raw)).status
            assert (status == 401) == (route.group is not Group.HEALTH), path


async def test_management_has_its_own_keys() -> None:
    service, management = line("alice", "k1"), line("prometheus", "m1")
    async with serving(api_keys=service, management_keys=management) as running:
        assert (await ask(running.port, "X-Api-Key: m1", path="/metrics")).status == 200
        assert (await ask(running.port, "X-Api-Key: k1")).status == 200
        wrong = await ask(running.port, "X-Api-Key: k1", path="/metrics")
        assert refusal(wrong) == (403, "Forbidden", ["error", "error_type"])
        assert (await ask(running.port, "X-Api-Key: m1")).status == 403
        assert (await ask(running.port, path="/metrics")).status == 401


async def test_without_keys_of_its_own_management_takes_the_services() -> None:
    async with serving(api_keys=line("alice", "k1")) as running:
        assert (await ask(running.port, "X-Api-Key: k1", path="/metrics")).status == 200
        assert (await ask(running.port, path="/metrics")).status == 401


async def test_only_management_may_have_keys() -> None:
    async with serving(management_keys=line("prometheus", "m1")) as running:
        assert (await ask(running.port)).status == 200
        assert (await ask(running.port, path="/metrics")).status == 401


@pytest.mark.alone
async def test_a_keys_rate_is_429_with_retry_after_and_only_its_own() -> None:
    keys = f"{line('a', 'k1', 'rate=1')},{line('b', 'k2')}"
    async with serving(api_keys=keys) as running:
        assert (await ask(running.port, "X-Api-Key: k1")).status == 200
        limited = await ask(running.port, "X-Api-Key: k1")
        assert refusal(limited) == (429, "Too Many Requests", ["error", "error_type"])
        assert 55 <= int(limited.headers["retry-after"]) <= 60
        assert (await ask(running.port, "X-Api-Key: k2")).status == 200


@pytest.mark.alone
async def test_a_keys_streams_at_once_are_limited_until_one_ends() -> None:
    go = asyncio.Event()

    async def held(request: EngineRequest) -> AsyncIterator[Token]:
        await go.wait()
        yield Token(1, "x", 0.0, 0.0, 1, Finish(FinishReason.LENGTH))

    engine = StubEngine(held)
    async with serving(engine, api_keys=line("a", "k1", "concurrency=1")) as running:
        first = asyncio.create_task(ask(running.port, "X-Api-Key: k1"))
        while not engine.submitted:
            await asyncio.sleep(0)
        assert (await ask(running.port, "X-Api-Key: k1")).status == 429
        assert (await ask(running.port, "X-Api-Key: k1", path="/metrics")).status == 200
        go.set()
        assert (await first).status == 200
        assert (await ask(running.port, "X-Api-Key: k1")).status == 200


@pytest.mark.alone
async def test_keys_are_rotated_while_a_stream_runs(tmp_path: Path) -> None:
    go = asyncio.Event()

    async def held(request: EngineRequest) -> AsyncIterator[Token]:
        await go.wait()
        yield Token(1, "x", 0.0, 0.0, 1, Finish(FinishReason.LENGTH))

    file = tmp_path / "keys"
    file.write_text(line("alice", "old"))
    engine = StubEngine(held)
    async with serving(engine, api_keys_file=file) as running:
        stream = asyncio.create_task(ask(running.port, "X-Api-Key: old"))
        while not engine.submitted:
            await asyncio.sleep(0)
        file.write_text(line("alice", "old") + "\n" + line("alice", "new"))
        await running.reloader.look()
        go.set()
        assert (await ask(running.port, "X-Api-Key: new")).status == 200
        file.write_text(line("alice", "new"))
        await running.reloader.look()
        assert (await ask(running.port, "X-Api-Key: old")).status == 401
        assert (await stream).complete


@pytest.mark.logs_errors
@pytest.mark.parametrize("content", ["alice no-hash", None])
@pytest.mark.alone
async def test_keys_that_became_unreadable_leave_the_old_ones_in_force(
    tmp_path: Path, content: str | None
) -> None:
    file = tmp_path / "keys"
    file.write_text(line("alice", "k1"))
    async with serving(api_keys_file=file) as running:
        if content is None:
            file.unlink()
        else:
            file.write_text(content)
        await running.reloader.look()
        assert (await ask(running.port, "X-Api-Key: k1")).status == 200
        assert (await ask(running.port)).status == 401
        failures = running.gateway.metrics.reload_failures.labels("service keys")
        assert failures._value.get() == 1


async def test_a_file_without_keys_lets_nobody_in(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("")
    async with serving(api_keys_file=tmp_path / "keys") as running:
        assert (await ask(running.port, "X-Api-Key: k1")).status == 401


async def test_wrong_keys_at_the_start_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="service keys: cannot read"):
        async with serving(api_keys_file=tmp_path / "nothing"):
            pass
