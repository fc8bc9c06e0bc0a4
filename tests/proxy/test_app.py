"""Routes and answers (contract §1): every case of its tables, on the wire."""

from __future__ import annotations

import re
from typing import Any

import pytest
from aiohttp import web

import proxy.app
from proxy.engines.stub import StubEngine, silent
from proxy.routes import ROUTES
from tests.support import (
    MODEL,
    STREAM_PATH,
    RawResponse,
    connection,
    exchange,
    generate_body,
    get,
    get_bytes,
    only_stream,
    post,
    request_bytes,
    serving,
)
from translators.errors import GatewayError, GenerationError, IncompleteGeneration

pytestmark = pytest.mark.usefixtures("workers")

NO_ROUTE = {"error": "there is no such route", "error_type": "NotFoundError"}
GET_ROUTES = [route.path for route in ROUTES if route.method == "GET" and "{" not in route.path]


def assert_error(response: RawResponse, status: int, error_type: str) -> str:
    """The contract's error shape; returns its text."""
    assert response.status == status, response.body
    assert response.headers["content-type"] == "application/json"
    assert list(response.json) == ["error", "error_type"]
    assert response.json["error_type"] == error_type
    assert response.json["error"]
    return str(response.json["error"])


@pytest.mark.parametrize(
    "model",
    ["llama3%2D70b", "%6C%6c%61%6d%613-70b", "llama3-70b?x=1", "llama3-70b?%ff&&=", "llama3-70b?"],
)
async def test_the_model_is_percent_decoded_and_the_query_ignored(model: str) -> None:
    name, mark, query = model.partition("?")
    async with serving() as running:
        path = f"/v2/models/{name}/generate_stream{mark}{query}"
        response = await post(running.port, generate_body(tokens=1), path)
    assert response.status == 200
    assert response.frames[0]["model_name"] == MODEL


@pytest.mark.parametrize(
    "model", ["other", "LLAMA3-70B", "llama3-70b%20", "%00", "%ff", "%zz", "..", "llama3-70b%2F"]
)
async def test_a_model_that_is_not_served(model: str) -> None:
    async with serving() as running:
        path = f"/v2/models/{model}/generate_stream"
        # Before the body is parsed: it is no JSON.
        response = await post(running.port, b"{", path)
        assert_error(response, 404, "NotFoundError")
        await running.settled(refused=1)


async def test_frames_carry_the_model_name_of_the_url_when_there_are_several() -> None:
    from dataclasses import replace

    from proxy.engines.stub import STUB_INFO

    engine = StubEngine(info=replace(STUB_INFO, names=("first", "se.co_nd-2", "模型")))
    async with serving(engine) as running:
        for name, spelled in (("se.co_nd-2", "se.co_nd-2"), ("模型", "%E6%A8%A1%E5%9E%8B")):
            path = f"/v2/models/{spelled}/generate_stream"
            response = await post(running.port, generate_body(tokens=1), path)
            assert response.frames[0]["model_name"] == name


@pytest.mark.parametrize("rest", ["1", "1/generate_stream", "1/infer", "", "x/y/z"])
@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_versions_are_not_supported(method: str, rest: str) -> None:
    async with serving() as running:
        path = f"/v2/models/{MODEL}/versions/{rest}"
        response = await exchange(running.port, request_bytes(b"", path, method=method))
    assert "versions are not supported" in assert_error(response, 404, "NotFoundError")


@pytest.mark.parametrize(
    ("method", "path"),
    [
        *((method, STREAM_PATH) for method in ("GET", "PUT", "DELETE", "PATCH", "OPTIONS")),
        ("POST", "/v2/health/live"),
        ("DELETE", "/metrics"),
        ("GET", "/"),
        ("POST", "/v2/models//generate_stream"),
        ("POST", STREAM_PATH + "/"),
        ("POST", STREAM_PATH.upper()),
        ("POST", f"/v2/models/{MODEL}/versions"),
        ("POST", "//v2/health/live"),
        ("OPTIONS", "*"),
        ("POST", "/v2/../etc/passwd"),
    ],
)
async def test_any_other_method_or_path_is_404(method: str, path: str) -> None:
    async with serving() as running:
        response = await exchange(running.port, request_bytes(b"{}", path, method=method))
    assert response.json == NO_ROUTE
    assert response.status == 404
    assert response.headers["content-type"] == "application/json"


async def test_an_absolute_request_target_is_a_request_like_any_other() -> None:
    async with serving() as running:
        response = await post(
            running.port, generate_body(tokens=1), f"http://elsewhere:99{STREAM_PATH}"
        )
    assert response.texts == [" one"]


@pytest.mark.parametrize("upgrade", ["h2c", "websocket", "TLS/1.3"])
async def test_an_offer_to_upgrade_is_declined_by_serving(upgrade: str) -> None:
    """Java's HTTP client offers h2c with every request."""
    headers = ("Connection: Upgrade, HTTP2-Settings", f"Upgrade: {upgrade}", "HTTP2-Settings: AA")
    async with serving() as running, connection(running.port) as client:
        for _ in range(2):
            request = request_bytes(generate_body(tokens=1), headers=headers)
            assert (await client.ask(request)).texts == [" one"]


@pytest.mark.parametrize("path", GET_ROUTES)
async def test_head_is_get_without_the_body(path: str) -> None:
    async with serving() as running, connection(running.port) as client:
        expected = await client.ask(get_bytes(path))
        answer = await client.ask(get_bytes(path, method="HEAD"))
        assert answer.status == expected.status
        assert answer.headers.get("content-type") == expected.headers.get("content-type")
        if path != "/metrics":  # whose figures have moved on
            assert answer.headers["content-length"] == expected.headers["content-length"]
        # The next answer begins where the head ended: HEAD really had no body.
        assert (await client.ask(get_bytes("/nowhere"))).json == NO_ROUTE


async def test_head_on_an_unready_gateway_is_503_without_a_body() -> None:
    async with serving(started=False) as running, connection(running.port) as client:
        answer = await client.ask(get_bytes("/v2/health/ready", method="HEAD"))
        assert answer.status == 503
        assert (await client.ask(get_bytes("/v2/health/live"))).status == 200


@pytest.mark.parametrize(
    "content_type", [None, "text/plain", "application/x-www-form-urlencoded", "\xff/;;=,"]
)
async def test_content_type_is_not_looked_at(content_type: str | None) -> None:
    headers = () if content_type is None else (f"Content-Type: {content_type}",)
    async with serving() as running:
        good = await post(running.port, generate_body(tokens=1), headers=headers)
        bad = await post(running.port, b"text_input=a", headers=headers)
    assert good.texts == [" one"]
    assert_error(bad, 422, "Input Validation Error")


@pytest.mark.parametrize(
    ("error", "status", "error_type"),
    [
        (GenerationError("refused by the engine"), 424, "Generation Error"),
        (IncompleteGeneration("the engine failed"), 500, "Incomplete Generation"),
    ],
)
async def test_what_the_engine_refuses(error: GatewayError, status: int, error_type: str) -> None:
    engine = StubEngine()
    engine.refusal = error
    async with serving(engine) as running:
        response = await post(running.port, generate_body())
        assert assert_error(response, status, error_type) == error.message
        await running.settled(**{"refused" if status == 424 else "failed": 1})


async def test_a_failure_known_before_the_headers_is_a_plain_error() -> None:
    """The engine accepts, and breaks the request at once (contract §1)."""

    class BreaksAtOnce(StubEngine):
        async def submit(self, request: Any) -> Any:
            stream = await super().submit(request)
            stream.fail(IncompleteGeneration("broken at once"))
            return stream

    async with serving(BreaksAtOnce()) as running:
        response = await post(running.port, generate_body())
        assert assert_error(response, 500, "Incomplete Generation") == "broken at once"
        await running.settled(failed=1)


@pytest.mark.logs_errors
@pytest.mark.parametrize("bug", [RuntimeError, TimeoutError, ConnectionResetError])
async def test_a_bug_before_the_stream_is_500_and_tells_nothing(
    bug: type[Exception], caplog: pytest.LogCaptureFixture
) -> None:
    """Also one that looks as if the client had left, or as if time had run out."""

    class Broken(StubEngine):
        async def tokenize(self, text: str) -> list[int]:
            raise bug("secret")

    async with serving(Broken()) as running:
        response = await post(running.port, generate_body("the prompt"))
        text = assert_error(response, 500, "Incomplete Generation")
        await running.settled(failed=1)
        after = await get(running.port, "/v2/health/live")
    assert text == "the request failed inside the gateway"
    assert after.status == 200
    assert [r.levelname for r in caplog.records if r.levelname == "ERROR"] == ["ERROR"]


@pytest.mark.logs_errors
async def test_a_bug_outside_every_handler_is_500_as_well(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def breaks(request: web.Request) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(proxy.app, "_not_yet", breaks)
    async with serving() as running, connection(running.port) as client:
        response = await client.ask(get_bytes("/v2/health/live", headers=("Expect: x",)))
        assert_error(response, 500, "Incomplete Generation")
        assert len(response.headers["requestuuid"]) == 32
        assert await client.rest() == b""


@pytest.mark.logs_errors
async def test_a_bug_after_the_first_byte_cuts_the_stream_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An error frame, a dropped connection, and never a second response in the same body."""
    from translators.triton_stream import TritonStream

    original = TritonStream.frame

    def breaks(self: TritonStream, each: Any) -> bytes:
        if self.generated == 1:
            raise RuntimeError("a bug")
        return original(self, each)

    monkeypatch.setattr(TritonStream, "frame", breaks)
    async with serving() as running:
        response = await post(running.port, generate_body())
        assert not response.complete
        first, last = response.frames
        assert first["text_output"] == " one"
        assert last["err_msg"] == "the request failed inside the gateway"
        await running.settled(failed=1)


@pytest.mark.logs_errors
async def test_no_second_response_follows_a_broken_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even when the last words fail: what is on the wire is cut off."""
    from translators.triton_stream import TritonStream

    def breaks(self: TritonStream, *args: Any) -> bytes:
        raise RuntimeError("a bug")

    monkeypatch.setattr(TritonStream, "frame", breaks)
    monkeypatch.setattr(TritonStream, "failed", breaks)
    async with serving() as running, connection(running.port) as client:
        client.send(request_bytes(generate_body()))
        raw = await client.rest()
        assert raw.count(b"HTTP/1.1") == 1
        assert raw.endswith(b"\r\n\r\n")
        await running.settled(failed=1)


async def test_every_response_has_a_request_uuid_of_its_own() -> None:
    requests = [
        request_bytes(generate_body(tokens=1)),
        request_bytes(b"{"),
        request_bytes(b"", "/nowhere"),
        request_bytes(generate_body(), "/v2/models/other/generate_stream"),
        request_bytes(generate_body(), headers=("Content-Encoding: br",)),
        *(get_bytes(path) for path in GET_ROUTES),
        get_bytes("/v2/health/live", method="HEAD"),
        b"no http\r\n\r\n",
    ]
    seen = set()
    async with serving() as running:
        for request in requests:
            uuid = (await exchange(running.port, request)).headers["requestuuid"]
            assert re.fullmatch("[0-9a-f]{32}", uuid)
            seen.add(uuid)
        engine: StubEngine = running.engine
        engine.script = silent
        async with connection(running.port) as client:
            client.send(request_bytes(generate_body()))
            await only_stream(engine)
            seen.add((await client.head()).headers["requestuuid"])
    assert len(seen) == len(requests) + 1


async def test_the_server_says_no_more_than_its_name() -> None:
    async with serving() as running:
        for raw in (get_bytes("/v2/health/live"), b"no http\r\n\r\n"):
            assert (await exchange(running.port, raw)).headers["server"] == "mindie-gateway"
