"""The read-only answers, as pure functions; tests/golden holds them whole."""

from __future__ import annotations

from typing import Any

import pytest

from translators import metadata


def slots(**given: Any) -> dict[str, Any]:
    figures = {
        "max_num_seqs": 8,
        "requests": 3,
        "kv_blocks": 100,
        "block_size": 16,
        "kv_cache_usage": 0.25,
    }
    return metadata.slot_count(**{**figures, **given})


def test_slots_and_tokens_that_are_free() -> None:
    assert slots() == {"total_slots": 8, "free_slots": 5, "available_tokens_length": 75 * 16}


@pytest.mark.parametrize(
    ("given", "key", "value"),
    [
        ({"requests": 9}, "free_slots", 0),
        ({"kv_cache_usage": 1.0}, "available_tokens_length", 0),
        ({"kv_cache_usage": 0.0}, "available_tokens_length", 1600),
        # One block of 363: what the scheduler reports is a rounded quotient.
        ({"kv_blocks": 363, "kv_cache_usage": 1 / 363}, "available_tokens_length", 362 * 16),
        ({"kv_blocks": None}, "available_tokens_length", None),
        ({"block_size": None}, "available_tokens_length", None),
    ],
)
def test_slots_at_their_bounds(given: dict[str, Any], key: str, value: Any) -> None:
    assert slots(**given)[key] == value


def config(**given: Any) -> dict[str, Any]:
    figures = {
        "max_seq_len": 2048,
        "kv_cache_bytes": None,
        "cpu_kv_cache_bytes": 0,
        "world_size": None,
        "model_path": None,
    }
    return metadata.model_config("m", **{**figures, **given})


@pytest.mark.parametrize(
    ("size", "shown"), [(None, -1), (0, 0), (2**30, 1), (3 * 2**29, 1.5), (2**30 + 1, 1.0)]
)
def test_memory_in_gib(size: int | None, shown: float) -> None:
    assert config(kv_cache_bytes=size)["npu_mem_size"] == shown


@pytest.mark.parametrize(
    ("path", "shown"),
    [(None, None), ("a/b/c", "c"), ("/a/b/c/", "c"), ("c", "c"), ("org/name", "name")],
)
def test_only_the_last_part_of_a_path(path: str | None, shown: str | None) -> None:
    assert config(model_path=path)["model_weight_path"] == shown


def test_a_platform_is_named_after_its_device() -> None:
    assert metadata.model_metadata("m", device_type="npu")["platform"] == "vllm_npu"
    assert metadata.model_metadata("m", device_type=None)["platform"] == "vllm"
