"""Checked parameters to sampling values (contract §3)."""

from __future__ import annotations

import math
import struct
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.translators.requests import body, read
from translators.contract import SERVER
from translators.sampling import (
    ModelDefaults,
    Sampling,
    engine_priority,
    fold_seed,
    resolve_sampling,
)

SILENT = ModelDefaults()
MODEL = ModelDefaults(temperature=0.6, top_k=20, top_p=0.95, repetition_penalty=1.2)
GREEDY = Sampling(
    temperature=0.0, top_k=None, top_p=1.0, repetition_penalty=1.0, seed=None, max_tokens=20
)


def resolve(
    defaults: ModelDefaults = SILENT, *, vocab: int = 32_000, room: int = 2000, **parameters: Any
) -> Sampling:
    return resolve_sampling(
        read(body(parameters=parameters)), defaults, vocab_size=vocab, room=room
    )


def sampled(**changes: Any) -> Sampling:
    """What a sampling request gets from contract §3 alone, changed."""
    values: dict[str, Any] = {
        "temperature": 1.0,
        "top_k": 1000,
        "top_p": 1.0,
        "repetition_penalty": 1.0,
        "seed": None,
        "max_tokens": 20,
    }
    return Sampling(**(values | changes))


OFTEN: dict[str, Any] = {"temperature": 0.7, "top_k": 5, "top_p": 0.5}


def test_do_sample_false_is_greedy_whatever_else_is_set() -> None:
    assert resolve(do_sample=False, **OFTEN) == GREEDY
    assert resolve(ModelDefaults(do_sample=True, temperature=0.6), do_sample=False) == GREEDY


def test_do_sample_true_is_sampling() -> None:
    assert resolve(do_sample=True) == sampled()
    assert resolve(ModelDefaults(do_sample=False), do_sample=True) == sampled()


@pytest.mark.parametrize("name", OFTEN)
def test_without_do_sample_each_of_three_makes_it_sampling(name: str) -> None:
    assert resolve(**{name: OFTEN[name]}) == sampled(**{name: OFTEN[name]})


@pytest.mark.parametrize(
    "others", [{}, {"seed": 7}, {"repetition_penalty": 1.5}, {"typical_p": 0.5}]
)
def test_nothing_else_makes_it_sampling(others: dict[str, Any]) -> None:
    assert resolve(**others).greedy


@pytest.mark.parametrize(("do_sample", "greedy"), [(True, False), (False, True), (None, True)])
def test_otherwise_the_model_decides(do_sample: bool | None, greedy: bool) -> None:
    assert resolve(ModelDefaults(do_sample=do_sample)).greedy is greedy


def test_a_model_that_only_names_values_does_not_decide() -> None:
    assert resolve(MODEL) == GREEDY


def test_missing_values_come_from_the_model() -> None:
    assert resolve(MODEL, do_sample=True) == sampled(
        temperature=0.6, top_k=20, top_p=0.95, repetition_penalty=1.2
    )
    assert resolve(MODEL, top_k=7) == sampled(
        temperature=0.6, top_k=7, top_p=0.95, repetition_penalty=1.2
    )


def test_the_clients_values_come_first() -> None:
    asked: dict[str, Any] = {
        "temperature": 1.5,
        "top_k": 3,
        "top_p": 0.25,
        "repetition_penalty": 0.5,
    }
    assert resolve(MODEL, **asked) == sampled(**asked)


def test_the_penalty_of_a_greedy_request_is_the_clients_alone() -> None:
    assert resolve(MODEL, do_sample=False).repetition_penalty == 1.0
    assert resolve(MODEL, do_sample=False, repetition_penalty=1.5).repetition_penalty == 1.5


def test_the_dialects_zero_temperature_is_as_greedy_as_do_sample_false() -> None:
    asked = read(body(temperature=0.0, top_k=40, top_p=0.9))
    assert resolve_sampling(asked, MODEL, vocab_size=100, room=2000) == GREEDY


def test_known_keys_of_a_generation_config() -> None:
    config = {"do_sample": True, "top_k": 20, "eos_token_id": [1, 2], "max_new_tokens": 5}
    assert ModelDefaults.from_config(config) == ModelDefaults(do_sample=True, top_k=20)
    assert ModelDefaults.from_config({}) == SILENT


@pytest.mark.parametrize(
    ("asked", "expected"), [(1, 1), (99, 99), (100, 100), (101, 100), (2**31 - 1, 100)]
)
def test_top_k_ends_at_the_vocabulary(asked: int, expected: int) -> None:
    assert resolve(top_k=asked, vocab=100).top_k == expected


def test_the_default_top_k_ends_at_the_vocabulary_too() -> None:
    assert resolve(do_sample=True, vocab=100).top_k == 100
    assert resolve(ModelDefaults(top_k=500), do_sample=True, vocab=100).top_k == 100


def test_top_k_zero_is_off() -> None:
    asked = read(body(parameters={"top_k": 0}), SERVER)
    assert resolve_sampling(asked, MODEL, vocab_size=100, room=9).top_k is None
    assert resolve(ModelDefaults(top_k=0), do_sample=True).top_k is None
    assert resolve(ModelDefaults(top_k=-1), do_sample=True).top_k is None


@pytest.mark.parametrize(
    ("asked", "room", "expected"),
    [(5, 100, 5), (100, 100, 100), (101, 100, 100), (2**31 - 1, 1, 1)],
)
def test_more_tokens_than_there_is_room_for_are_cut(asked: int, room: int, expected: int) -> None:
    assert resolve(max_new_tokens=asked, room=room).max_tokens == expected
    assert resolve(max_new_tokens=asked, room=room, do_sample=True).max_tokens == expected


def test_seed_and_bad_words_are_passed_on() -> None:
    asked = read(body(bad_words=["no"], parameters={"seed": 7, "do_sample": True}))
    assert resolve_sampling(asked, SILENT, vocab_size=2000, room=99) == sampled(
        seed=7, bad_words=("no",)
    )
    asked = read(body(bad_words="no"))
    assert resolve_sampling(asked, SILENT, vocab_size=2000, room=99).bad_words == ("no",)


@pytest.mark.parametrize("temperature", [1.1e-6, 5e-6, 9.9e-6])
def test_temperatures_that_the_engine_cannot_divide_by_are_greedy(temperature: float) -> None:
    assert resolve(MODEL, temperature=temperature, do_sample=True) == GREEDY


@pytest.mark.parametrize("temperature", [1e-5, 0.001, 2.0])
def test_other_temperatures_are_kept(temperature: float) -> None:
    assert resolve(temperature=temperature).temperature == temperature


def as_float32(value: float) -> float:
    """As the engine keeps it. OverflowError when float32 cannot hold it."""
    packed: tuple[float] = struct.unpack("f", struct.pack("f", value))
    return packed[0]


def float32_logit(logit: float, sampling: Sampling) -> float:
    """One logit through penalty and temperature, rounded to float32 at each step."""
    penalty = as_float32(sampling.repetition_penalty)
    scale = as_float32(1.0 / penalty) if logit > 0 else penalty
    return as_float32(as_float32(logit * scale) / as_float32(sampling.temperature))


EXTREMES = [1.1e-6, 1e-5, 1.0, 1e10, 3.4028235e38, 1e300, 1.7976931348623157e308]
PENALTIES = [5e-324, 1e-300, 1e-38, 1e-10, 1.0, 1e10, 3.5e38, 1.7976931348623157e308]


@pytest.mark.parametrize("temperature", EXTREMES)
@pytest.mark.parametrize("penalty", PENALTIES)
def test_nothing_makes_float32_infinite(temperature: float, penalty: float) -> None:
    sampling = resolve(temperature=temperature, repetition_penalty=penalty, do_sample=True)
    assert as_float32(sampling.repetition_penalty) > 0.0
    if sampling.greedy:
        return
    for logit in (-1000.0, -1e-3, 0.0, 1e-3, 1000.0):
        assert math.isfinite(float32_logit(logit, sampling))


@pytest.mark.parametrize(
    ("seed", "folded"),
    [
        (None, None),
        (0, 0),
        (1, 1),
        (2**63 - 1, 2**63 - 1),
        (2**63, -(2**63)),
        (2**63 + 1, -(2**63) + 1),
        (2**64 - 2, -2),
        (2**64 - 1, -(2**62)),
        (2**64 - 2**62, -(2**62)),
    ],
)
def test_seeds(seed: int | None, folded: int | None) -> None:
    assert fold_seed(seed) == folded


UINT64 = st.integers(0, 2**64 - 1)
# The one pair of seeds that share a value.
TWINS = {2**64 - 1, 2**64 - 2**62}


@given(UINT64)
@example(2**64 - 1)
@example(2**63)
def test_a_folded_seed_is_an_int64_and_never_no_seed(seed: int) -> None:
    folded = fold_seed(seed)
    assert folded is not None
    assert -(2**63) <= folded < 2**63
    assert folded != -1


@given(UINT64, UINT64)
@example(2**64 - 1, 2**64 - 2)
@example(*TWINS)
def test_different_seeds_stay_different(one: int, other: int) -> None:
    if {one, other} == TWINS:
        assert fold_seed(one) == fold_seed(other)
    else:
        assert (fold_seed(one) == fold_seed(other)) is (one == other)


@given(UINT64)
def test_the_fold_keeps_the_64_bits(seed: int) -> None:
    folded = fold_seed(seed)
    assert folded is not None
    assert folded % 2**64 == seed or seed == 2**64 - 1


def test_priorities() -> None:
    assert [engine_priority(priority) for priority in (1, 2, 3, 4, 5)] == [-4, -3, -2, -1, 0]
