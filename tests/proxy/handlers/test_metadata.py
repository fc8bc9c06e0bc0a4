"""The read-only routes: MindIE's keys, the running engine's figures (contract §7)."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest

import proxy
from proxy.engines.base import ModelInfo
from proxy.engines.stub import STUB_INFO, StubEngine, silent
from proxy.gateway import State
from tests.support import MODEL, connection, eventually, generate_body, get, request_bytes, serving

pytestmark = pytest.mark.usefixtures("workers")

GOLDEN = Path(__file__).resolve().parents[2] / "golden"
PATHS = {
    "server_metadata": "/v2",
    "model_metadata": f"/v2/models/{MODEL}",
    "model_config": f"/v2/models/{MODEL}/config",
    "slot_count": f"/v2/models/{MODEL}/getSlotCount",
    "tgi_info": "/info",
}
TELLS_NOTHING = ModelInfo(
    names=(MODEL,),
    max_model_len=2048,
    max_position_embeddings=2048,
    vocab_size=32_000,
    max_num_seqs=256,
    priority_scheduling=False,
)


@pytest.mark.parametrize("name", PATHS)
async def test_the_answer_byte_by_byte(name: str) -> None:
    expected = (GOLDEN / f"{name}.json").read_bytes()
    version = b'"version":"%b"' % proxy.__version__.encode()
    async with serving() as running:
        response = await get(running.port, PATHS[name])
        assert response.status == 200
        assert response.headers["content-type"] == "application/json"
        assert response.body == expected.replace(b'"version":"0.1.0"', version)
        head = await get(running.port, PATHS[name], method="HEAD")
    assert head.headers["content-length"] == str(len(response.body))


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("model_config", "world_size"),
        ("model_config", "model_weight_path"),
        ("slot_count", "available_tokens_length"),
        ("tgi_info", "model_dtype"),
    ],
)
async def test_what_the_engine_does_not_say_is_null_and_never_a_guess(name: str, key: str) -> None:
    async with serving(StubEngine(info=TELLS_NOTHING)) as running:
        assert (await get(running.port, PATHS[name])).json[key] is None


async def test_a_cache_that_the_engine_sized_itself_is_minus_one_as_in_mindie() -> None:
    async with serving(StubEngine(info=TELLS_NOTHING)) as running:
        assert (await get(running.port, PATHS["model_config"])).json["npu_mem_size"] == -1


async def test_memory_is_told_in_gib() -> None:
    info = replace(STUB_INFO, kv_cache_bytes=2_684_354_560, cpu_kv_cache_bytes=2**32)
    async with serving(StubEngine(info=info)) as running:
        config = (await get(running.port, PATHS["model_config"])).json
    assert (config["npu_mem_size"], config["cpu_mem_size"]) == (2.5, 4)


@pytest.mark.parametrize("path", ["/data/models/weights/", "/data/models/weights", "weights"])
async def test_no_directory_of_the_model_is_shown(path: str) -> None:
    async with serving(StubEngine(info=replace(STUB_INFO, model_path=path))) as running:
        config = (await get(running.port, PATHS["model_config"])).json
    assert config["model_weight_path"] == "weights"


async def test_the_operators_limits_show_where_they_hold() -> None:
    async with serving(max_iter_times=100, max_input_token_len=50) as running:
        server = (await get(running.port, "/v2")).json
        info = (await get(running.port, "/info")).json
    assert server["extensions"]["max_iter_times"] == 100
    assert info["max_input_length"] == 50


async def test_running_requests_take_slots_and_cache() -> None:
    async with serving(StubEngine(silent)) as running, connection(running.port) as client:
        client.send(request_bytes(generate_body()))
        await eventually(lambda: running.engine.live)
        slots = (await get(running.port, PATHS["slot_count"])).json
        assert slots == {
            "total_slots": 256,
            "free_slots": 255,
            "available_tokens_length": 16 * 1023,
        }


@pytest.mark.alone
async def test_there_are_never_less_than_no_slots() -> None:
    engine = StubEngine(silent, replace(STUB_INFO, max_num_seqs=1))
    async with (
        serving(engine) as running,
        connection(running.port) as client,
        connection(running.port) as other,
    ):
        client.send(request_bytes(generate_body()))
        other.send(request_bytes(generate_body()))
        await eventually(lambda: len(running.engine.live) == 2)
        assert (await get(running.port, PATHS["slot_count"])).json["free_slots"] == 0


async def test_every_served_name_is_a_model_of_its_own() -> None:
    info = replace(STUB_INFO, names=("big", "small"))
    before = int(time.time())
    async with serving(StubEngine(info=info)) as running:
        listed = (await get(running.port, "/v1/models")).json
        assert (await get(running.port, "/v2/models/small")).json["name"] == "small"
        tgi = (await get(running.port, "/info")).json
    assert listed["object"] == "list"
    assert [entry["id"] for entry in listed["data"]] == ["big", "small"]
    created = listed["data"][0].pop("created")
    assert before <= created <= time.time()
    assert listed["data"][0] == {
        "id": "big",
        "object": "model",
        "owned_by": "mindie-gateway",
        "max_model_len": 2048,
    }
    assert tgi["model_id"] == "big"
    assert [model["model_id"] for model in tgi["models"]] == ["big", "small"]


@pytest.mark.parametrize("suffix", ["", "/config", "/getSlotCount", "/ready"])
async def test_an_unknown_model_is_404(suffix: str) -> None:
    async with serving() as running:
        response = await get(running.port, f"/v2/models/other{suffix}")
    assert response.status == 404
    assert response.json["error_type"] == "NotFoundError"


@pytest.mark.parametrize("path", [*PATHS.values(), "/v1/models"])
async def test_before_the_engine_has_spoken_there_is_nothing_to_tell(path: str) -> None:
    async with serving(started=False) as running:
        response = await get(running.port, path)
    assert response.status == 503
    assert response.json["error_type"] == "Service Unavailable"


@pytest.mark.parametrize("name", ["slot_count", "tgi_info"])
@pytest.mark.alone
async def test_what_invites_requests_is_503_while_none_are_taken(name: str) -> None:
    async with serving() as running:
        running.gateway.enter(State.DRAINING)
        assert (await get(running.port, PATHS[name])).status == 503
        assert (await get(running.port, "/v2")).status == 200
