"""NVIDIA's tritonclient[http]: health, metadata, config, infer."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import tritonclient.http as triton
from tritonclient.utils import InferenceServerException

from tests.clients.conftest import Server


@pytest.fixture
def client(gateway: Server) -> Iterator[triton.InferenceServerClient]:
    client = triton.InferenceServerClient(gateway.address)
    yield client
    client.close()


def _ids(values: list[int]) -> triton.InferInput:
    tensor = triton.InferInput("input0", [1, len(values)], "UINT32")
    tensor.set_data_from_numpy(np.array([values], dtype=np.uint32), binary_data=False)
    return tensor


def test_health(client: triton.InferenceServerClient, gateway: Server) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready(gateway.model)
    assert not client.is_model_ready("another")


def test_metadata(client: triton.InferenceServerClient, gateway: Server) -> None:
    assert client.get_server_metadata()["name"]
    metadata = client.get_model_metadata(gateway.model)
    assert metadata["name"] == gateway.model
    assert metadata["inputs"][0] == {"name": "input0", "shape": [-1], "datatype": "UINT32"}


def test_config(client: triton.InferenceServerClient, gateway: Server) -> None:
    config = client.get_model_config(gateway.model)
    assert config["model_name"] == gateway.model
    assert config["max_seq_len"] == 2048


def test_infer_is_deterministic_token_ids(
    client: triton.InferenceServerClient, gateway: Server
) -> None:
    output = triton.InferRequestedOutput("output0", binary_data=False)
    answers = [
        client.infer(
            gateway.model,
            [_ids([504, 3575, 282])],
            outputs=[output],
            parameters={"max_new_tokens": 6, "do_sample": False},
        ).as_numpy("output0")
        for _ in range(2)
    ]
    assert answers[0].shape == (1, 6)
    assert answers[0].tolist() == answers[1].tolist()


def test_infer_refuses_ids_beyond_the_vocabulary(
    client: triton.InferenceServerClient, gateway: Server
) -> None:
    output = triton.InferRequestedOutput("output0", binary_data=False)
    with pytest.raises(InferenceServerException, match=r"4000000000"):
        client.infer(gateway.model, [_ids([4_000_000_000])], outputs=[output])
