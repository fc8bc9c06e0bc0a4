"""TLS on real sockets, on both event loops: uvloop's is what a real process runs."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import uvloop

from proxy.engines.base import EngineRequest
from proxy.engines.stub import StubEngine
from proxy.settings import Settings, SettingsError
from proxy.tls import tls_context
from tests.certificates import Authority
from tests.support import RawResponse, exchange, get_bytes, request_bytes, serving
from translators.tokens import Finish, FinishReason, Token

BODY = {"text_input": "one two", "parameters": {"max_new_tokens": 3}}
REFUSED = (ConnectionError, ssl.SSLError, asyncio.IncompleteReadError)
Run = Callable[[Awaitable[None]], None]


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    """Runs a test's body on one kind of loop."""

    def on_loop(body: Any) -> None:
        with asyncio.Runner(loop_factory=request.param) as runner:
            runner.run(body)

    return on_loop


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def served_by(authority: Authority, name: str = "server") -> dict[str, Any]:
    certificate, key = authority.issue(name)
    return {"tls_cert_file": certificate, "tls_key_file": key}


async def ask(port: int, tls: ssl.SSLContext | None) -> RawResponse:
    async with asyncio.timeout(10):
        return await exchange(port, request_bytes(BODY), tls=tls)


def test_a_stream_comes_over_tls_one_frame_a_chunk(run: Run, authority: Authority) -> None:
    async def body() -> None:
        async with serving(**served_by(authority)) as running:
            response = await ask(running.port, authority.client())
        assert response.complete
        assert [frame["text_output"] for frame in response.frames] == [" one", " two", " one"]

    run(body())


def test_plain_http_on_a_tls_port_gets_no_answer(run: Run, authority: Authority) -> None:
    async def body() -> None:
        async with serving(**served_by(authority)) as running:
            with pytest.raises(REFUSED):
                await ask(running.port, None)
            assert (await ask(running.port, authority.client())).status == 200

    run(body())


@pytest.mark.parametrize(
    ("minimum", "offered", "accepted"),
    [
        ("1.2", ssl.TLSVersion.TLSv1_1, False),
        ("1.2", ssl.TLSVersion.TLSv1_2, True),
        ("1.3", ssl.TLSVersion.TLSv1_2, False),
        ("1.3", ssl.TLSVersion.TLSv1_3, True),
    ],
)
@pytest.mark.filterwarnings("ignore:ssl.TLSVersion.TLSv1_1")
def test_the_oldest_version_is_a_setting(
    run: Run, authority: Authority, minimum: str, offered: ssl.TLSVersion, accepted: bool
) -> None:
    client = authority.client()
    client.set_ciphers("ALL:@SECLEVEL=0")
    client.minimum_version = ssl.TLSVersion.MINIMUM_SUPPORTED
    client.maximum_version = offered

    async def body() -> None:
        async with serving(tls_min_version=minimum, **served_by(authority)) as running:
            if accepted:
                assert (await ask(running.port, client)).status == 200
            else:
                with pytest.raises(REFUSED):
                    await ask(running.port, client)

    run(body())


def test_a_key_with_a_password(run: Run, authority: Authority) -> None:
    certificate, key = authority.issue("server", password=b"open sesame")
    files: dict[str, Any] = {"tls_cert_file": certificate, "tls_key_file": key}

    async def body() -> None:
        async with serving(tls_key_password="open sesame", **files) as running:
            assert (await ask(running.port, authority.client())).status == 200

    run(body())
    wrong_ones: tuple[dict[str, Any], ...] = ({}, {"tls_key_password": "wrong"})
    for wrong in wrong_ones:
        with pytest.raises(SettingsError, match="TLS certificate or key"):
            tls_context(Settings(**files, **wrong))


def test_only_clients_of_the_authority_get_in(run: Run, authority: Authority) -> None:
    stranger = Authority(authority.folder, "another authority").issue("stranger")

    async def body() -> None:
        settings = served_by(authority) | {"tls_client_ca_file": authority.file}
        async with serving(**settings) as running:
            known = authority.client(authority.issue("client"))
            assert (await ask(running.port, known)).status == 200
            for unknown in (authority.client(), authority.client(stranger)):
                with pytest.raises(REFUSED):
                    await ask(running.port, unknown)
            assert (await ask(running.port, known)).status == 200

    run(body())


def test_probes_and_prometheus_need_no_certificate_on_listeners_of_their_own(
    run: Run, authority: Authority
) -> None:
    async def body() -> None:
        settings = served_by(authority) | {"tls_client_ca_file": authority.file}
        async with serving(management_port=0, metrics_port=0, **settings) as running:
            service, management, metrics = running.ports
            for port, path in ((management, "/v2/health/ready"), (metrics, "/metrics")):
                response = await exchange(port, get_bytes(path), tls=authority.client())
                assert response.status == 200
            with pytest.raises(REFUSED):
                await ask(service, authority.client())

    run(body())


def test_a_revoked_client_stays_out(run: Run, authority: Authority) -> None:
    good, bad = authority.issue("good"), authority.issue("bad")

    async def body() -> None:
        settings = served_by(authority) | {
            "tls_client_ca_file": authority.file,
            "tls_crl_file": authority.revoke(bad[0]),
        }
        async with serving(**settings) as running:
            assert (await ask(running.port, authority.client(good))).status == 200
            with pytest.raises(REFUSED):
                await ask(running.port, authority.client(bad))

    run(body())


class Held:
    """A stub's script that gives one token, and the second when it may."""

    def __init__(self) -> None:
        self.go = asyncio.Event()

    async def __call__(self, request: EngineRequest) -> AsyncIterator[Token]:
        yield Token(1, "a", 0.0, 0.0, 1)
        await self.go.wait()
        yield Token(2, "b", 0.0, 0.0, 1, Finish(FinishReason.LENGTH))


def test_a_renewed_certificate_meets_new_clients_and_drops_no_stream(
    run: Run, authority: Authority
) -> None:
    async def body() -> None:
        held = Held()
        async with serving(StubEngine(held), **served_by(authority)) as running:
            before, reader, writer = await opened(running.port, authority.client())
            await reader.readuntil(b'"a"')
            authority.issue("server")
            await running.reloader.look()
            after, _, other = await opened(running.port, authority.client())
            assert before != after
            held.go.set()
            rest = await reader.readuntil(b"0\r\n\r\n")
            assert b'"text_output":"b"' in rest
            for connection in (writer, other):
                connection.close()

    run(body())


async def opened(
    port: int, tls: ssl.SSLContext
) -> tuple[int, asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection that has sent a request, and the serial number of the server's certificate."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=tls)
    writer.write(request_bytes(BODY))
    serial = int(writer.get_extra_info("peercert")["serialNumber"], 16)
    return serial, reader, writer


def test_a_client_revoked_later_stays_out_even_with_its_old_session(
    run: Run, authority: Authority
) -> None:
    async def body() -> None:
        bad = authority.issue("bad")
        settings = served_by(authority) | {
            "tls_client_ca_file": authority.file,
            "tls_crl_file": authority.revoke(),
        }
        async with serving(**settings) as running:
            client = authority.client(bad)
            session = await asyncio.to_thread(session_of, running.port, client)
            authority.revoke(bad[0])
            await running.reloader.look()
            for offered in (None, session):
                with pytest.raises(REFUSED):
                    await asyncio.to_thread(session_of, running.port, client, offered)

    run(body())


def session_of(
    port: int, tls: ssl.SSLContext, session: ssl.SSLSession | None = None
) -> ssl.SSLSession | None:
    """Ask for health over a blocking socket; the TLS session to resume later."""
    with (
        socket.create_connection(("127.0.0.1", port), timeout=10) as plain,
        tls.wrap_socket(plain, server_hostname="127.0.0.1", session=session) as wrapped,
    ):
        wrapped.sendall(b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n")
        if not wrapped.recv(100).startswith(b"HTTP/1.1 200"):
            raise ConnectionError("no answer")
        return wrapped.session


@pytest.mark.logs_errors
@pytest.mark.parametrize("damage", ["certificate", "key", "missing"])
def test_files_that_became_unusable_leave_the_old_ones_in_force(
    run: Run, authority: Authority, damage: str
) -> None:
    async def body() -> None:
        settings = served_by(authority)
        async with serving(**settings) as running:
            if damage == "missing":
                settings["tls_key_file"].unlink()
            elif damage == "key":
                other = authority.issue("other")[1]
                settings["tls_key_file"].write_bytes(other.read_bytes())
            else:
                settings["tls_cert_file"].write_text("not a certificate")
            await running.reloader.look()
            assert (await ask(running.port, authority.client())).status == 200
            failures = running.gateway.metrics.reload_failures.labels("TLS files")
            assert failures._value.get() == 1

    run(body())


def test_a_client_that_does_not_shake_hands_is_dropped(
    run: Run, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("proxy.server._HANDSHAKE", 0.1)

    async def body() -> None:
        async with serving(**served_by(authority)) as running:
            reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
            async with asyncio.timeout(5):
                assert await reader.read() == b""
            writer.close()

    run(body())


def test_a_reader_that_never_reads_is_dropped_over_tls_as_well(
    run: Run, authority: Authority
) -> None:
    async def flood(request: EngineRequest) -> AsyncIterator[Token]:
        for count in range(2000):
            yield Token(count, "x" * 10_000, 0.0, 0.0, 1)
            await asyncio.sleep(0)

    async def body() -> None:
        engine = StubEngine(flood)
        async with serving(engine, write_timeout=0.3, **served_by(authority)) as running:
            _, reader, writer = await opened(running.port, authority.client())
            reader._transport.pause_reading()  # type: ignore[attr-defined]
            async with asyncio.timeout(10):
                while not engine.submitted or engine.live:
                    await asyncio.sleep(0.01)
            writer.transport.abort()

    run(body())


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"host": "0.0.0.0"}, "every address, without TLS"),
        ({"host": "::"}, "every address, without TLS"),
        ({"host": "0"}, "every address, without TLS"),
        ({"host": "0x0"}, "every address, without TLS"),
        ({"host": ""}, "every address, without TLS"),
        ({"host": "::ffff:0.0.0.0"}, "every address, without TLS"),
        ({"tls_key_file": "k"}, "tls_key_file has no effect without tls_cert_file"),
        ({"tls_client_ca_file": "c"}, "tls_client_ca_file has no effect without tls_cert_file"),
        ({"tls_cert_file": "c", "tls_crl_file": "r"}, "tls_crl_file has no effect without"),
        ({"tls_cert_file": "c", "tls_min_version": "1.1"}, "tls_min_version"),
    ],
)
def test_what_is_less_safe_than_it_looks_is_refused(
    settings: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(ValueError, match=complaint):
        Settings(**settings)


@pytest.mark.parametrize(
    "settings",
    [
        {"host": "0.0.0.0", "allow_plain_http": True},
        {"host": "0.0.0.0", "tls_cert_file": "c"},
        {"host": "127.0.0.1"},
        {"host": "::1"},
        {"host": "localhost"},
        {"host": "10.0.0.1"},
    ],
)
def test_what_is_safe_or_was_asked_for_is_not(settings: dict[str, Any]) -> None:
    assert Settings(**settings).host == settings["host"]


@pytest.mark.parametrize(
    "settings",
    [
        {"tls_cert_file": "nothing.pem"},
        {"tls_client_ca_file": "nothing.pem"},
        {"tls_client_ca_file": "server.key"},
        {"tls_crl_file": "nothing.pem"},
    ],
)
def test_files_that_are_missing_or_wrong_are_refused_at_the_start(
    authority: Authority, settings: dict[str, str]
) -> None:
    files = {name: authority.folder / file for name, file in settings.items()}
    given = served_by(authority) | {"tls_client_ca_file": authority.file} | files
    with pytest.raises(SettingsError, match="TLS"):
        tls_context(Settings(**given))
