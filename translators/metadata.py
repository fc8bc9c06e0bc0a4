"""What the gateway says about itself and its model: the read-only routes of contract §7.

Every figure is handed in by the caller, who has it from the running engine; None
is "the engine does not say" and stays null. Key order is MindIE's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from translators.contract import MAX_WORDS
from translators.triton_infer import DATATYPE, INPUT_NAME, OUTPUT_NAME

GIB: Final = 2**30
SIZED_BY_THE_ENGINE: Final = -1
"""`npu_mem_size` where nobody fixed the size of the KV cache, as in MindIE."""


def server_metadata(
    name: str,
    version: str,
    *,
    max_iter_times: int,
    max_prefill_batch_size: int,
    max_prefill_tokens: int | None,
) -> dict[str, Any]:
    """GET /v2. The policy types are MindIE's first come, first served."""
    return {
        "name": name,
        "version": version,
        "extensions": {
            "max_iter_times": max_iter_times,
            "prefill_policy_type": 0,
            "decode_policy_type": 0,
            "max_prefill_batch_size": max_prefill_batch_size,
            "max_prefill_tokens": max_prefill_tokens,
        },
    }


def model_metadata(name: str, *, device_type: str | None) -> dict[str, Any]:
    """GET /v2/models/{model}: the tensors of infer."""
    return {
        "name": name,
        "platform": "vllm" if device_type is None else f"vllm_{device_type}",
        "inputs": [_tensor(INPUT_NAME)],
        "outputs": [_tensor(OUTPUT_NAME)],
    }


def _tensor(name: str) -> dict[str, Any]:
    return {"name": name, "shape": [-1], "datatype": DATATYPE}


def model_config(
    name: str,
    *,
    max_seq_len: int,
    kv_cache_bytes: int | None,
    cpu_kv_cache_bytes: int,
    world_size: int | None,
    model_path: str | None,
) -> dict[str, Any]:
    """GET /v2/models/{model}/config. Memory sizes are GiB of KV cache.

    Of the path only the last part is shown, as MindIE does.
    """
    return {
        "model_name": name,
        "input_datatype": "INT64",
        "output_datatype": "INT64",
        "max_seq_len": max_seq_len,
        "npu_mem_size": SIZED_BY_THE_ENGINE if kv_cache_bytes is None else _gib(kv_cache_bytes),
        "cpu_mem_size": _gib(cpu_kv_cache_bytes),
        "world_size": world_size,
        "model_weight_path": None if model_path is None else _last_part(model_path),
        "model_instance_type": "Standard",
    }


def _gib(size: int) -> int | float:
    return size // GIB if size % GIB == 0 else round(size / GIB, 3)


def _last_part(path: str) -> str:
    return path.rstrip("/").rpartition("/")[2]


def slot_count(
    *,
    max_num_seqs: int,
    requests: int,
    kv_blocks: int | None,
    block_size: int | None,
    kv_cache_usage: float,
) -> dict[str, Any]:
    """GET /v2/models/{model}/getSlotCount: `requests` run or wait in the engine."""
    tokens = None
    if kv_blocks is not None and block_size is not None:
        tokens = round(kv_blocks * (1.0 - kv_cache_usage)) * block_size
    return {
        "total_slots": max_num_seqs,
        "free_slots": max(max_num_seqs - requests, 0),
        "available_tokens_length": tokens,
    }


def tgi_info(  # noqa: PLR0913 - each is a figure of the answer
    names: Sequence[str],
    version: str,
    *,
    max_num_seqs: int,
    max_num_batched_tokens: int | None,
    max_input_tokens: int,
    max_total_tokens: int,
    device_type: str | None,
    dtype: str | None,
) -> dict[str, Any]:
    """GET /info: MindIE's form, with TGI's own keys for the main model beside it."""
    models = [_tgi_model(name, device_type, dtype, max_total_tokens) for name in names]
    return {
        **models[0],
        "docker_label": None,
        "max_batch_total_tokens": max_num_batched_tokens,
        "max_best_of": 1,
        "max_concurrent_requests": max_num_seqs,
        "max_stop_sequences": MAX_WORDS,
        "max_waiting_tokens": None,
        "sha": None,
        "validation_workers": None,
        "version": version,
        "waiting_served_ratio": None,
        "models": models,
        "max_input_length": max_input_tokens,
        "max_input_tokens": max_input_tokens,
    }


def _tgi_model(
    name: str, device_type: str | None, dtype: str | None, max_total_tokens: int
) -> dict[str, Any]:
    return {
        "model_id": name,
        "model_sha": None,
        "model_dtype": dtype,
        "model_device_type": device_type,
        "model_pipeline_tag": "text-generation",
        "max_total_tokens": max_total_tokens,
    }


def openai_models(
    names: Sequence[str], *, created: int, owner: str, max_model_len: int
) -> dict[str, Any]:
    """GET /v1/models. `created` is a Unix time in seconds."""
    return {
        "object": "list",
        "data": [
            {
                "id": name,
                "object": "model",
                "created": created,
                "owned_by": owner,
                "max_model_len": max_model_len,
            }
            for name in names
        ],
    }
