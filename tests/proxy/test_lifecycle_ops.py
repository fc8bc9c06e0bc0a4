"""Stopping and reloading as an operator does it: a real process, real signals."""

from __future__ import annotations

import hashlib
import signal
import time
from pathlib import Path

from tests.proxy.test_lifecycle import process, streaming
from tests.support import exchange, generate_body, get, post, request_bytes


async def test_before_it_drains_it_may_take_work_while_it_says_that_it_is_not_ready() -> None:
    async with process("--pre-stop-wait=1", "--drain-timeout=5") as served:
        await served.ready()
        started = time.monotonic()
        served.signal()
        await served.says("state: the server is about to shut down")
        refused = await get(served.port, "/v2/health/ready")
        assert refused.status == 503
        assert refused.json == {"message": "the server is about to shut down"}
        assert (await post(served.port, generate_body())).status == 200
        assert await served.exit_code() == 0
        assert time.monotonic() - started >= 1
        assert "state: the server is shutting down" in served.log


async def test_a_second_signal_ends_the_wait_as_well() -> None:
    async with process("--pre-stop-wait=300") as served:
        await served.ready()
        served.signal()
        await served.says("state: the server is about to shut down")
        served.signal()
        assert await served.exit_code() == 0


async def test_stop_service_drains_and_a_signal_after_it_does_not_cut_the_drain_short() -> None:
    async with process("--management-port=0", "--stop-service", "--drain-timeout=20") as served:
        await served.ready()
        management = served.port_of("management")
        async with streaming(served, "slowly") as client:
            assert (await get(management, "/stopService")).status == 200
            await served.says("state: the server is shutting down")
            served.signal()
            assert (await get(management, "/stopService")).status == 200
            assert (await post(served.port, generate_body())).status == 503
            while await client.chunk():
                pass
        assert await served.exit_code() == 0


async def test_sighup_reads_the_keys_again_and_ends_nothing(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    write_key(keys, "old")
    async with process(f"--api-keys-file={keys}") as served:
        await served.ready()
        assert await status(served.port, "old") == 200
        write_key(keys, "new")
        served.signal(signal.SIGHUP)
        await served.says("service keys read again")
        assert await status(served.port, "new") == 200
        assert await status(served.port, "old") == 401
        keys.write_text("nonsense")
        await served.says("the old service keys stay in force")
        assert await status(served.port, "new") == 200
        served.signal()
        assert await served.exit_code() == 0


def write_key(file: Path, secret: str) -> None:
    file.write_text(f"alice sha256:{hashlib.sha256(secret.encode()).hexdigest()}\n")


async def status(port: int, key: str) -> int:
    raw = request_bytes(generate_body(), headers=(f"X-Api-Key: {key}",))
    return (await exchange(port, raw)).status


async def test_wrong_files_end_it_at_once_with_the_reason(tmp_path: Path) -> None:
    async with process(f"--api-keys-file={tmp_path / 'none'}") as served:
        assert await served.exit_code() == 2
        assert "service keys: cannot read the keys file" in served.log
    async with process(f"--tls-cert-file={tmp_path / 'none'}") as served:
        assert await served.exit_code() == 2
        assert "TLS certificate or key: No such file" in served.log
