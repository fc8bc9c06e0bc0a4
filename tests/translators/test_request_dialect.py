"""The Triton dialect: generation fields at the top level of the body (contract §3)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.translators.requests import BOTH, body, read
from translators.contract import DOCUMENTED, SERVER, Contract
from translators.errors import InvalidInput

TENSORRT = body(
    max_tokens=64,
    temperature=0.0,
    top_p=0.9,
    top_k=40,
    stop_words="",
    bad_words="",
    stream=True,
    end_id=2,
    accumulate_tokens=True,
    min_length=1,
)


@pytest.mark.parametrize("contract", BOTH, ids=lambda contract: contract.name)
def test_a_request_of_a_tensorrt_client(contract: Contract) -> None:
    parameters = read(TENSORRT, contract)
    assert parameters.max_new_tokens == 64
    assert (parameters.temperature, parameters.top_p, parameters.top_k) == (0.0, 0.9, 40)
    assert (parameters.stop_words, parameters.bad_words) == ((), ())
    assert parameters.accumulate is True


@pytest.mark.parametrize("contract", BOTH, ids=lambda contract: contract.name)
def test_switched_off_it_is_ignored_like_any_unknown_field(contract: Contract) -> None:
    nothing = read(body(), contract)
    assert read(TENSORRT, contract, dialect=False) == nothing
    wrong = body(max_tokens="x", stop_words=1, accumulate_tokens=1, temperature=[])
    assert read(wrong, contract, dialect=False) == nothing
    assert read(body(parameters={"max_tokens": 7}), contract, dialect=False) == nothing


@pytest.mark.parametrize(
    ("request_body", "expected"),
    [
        (body(max_tokens=7), 7),
        (body(parameters={"max_tokens": 8}), 8),
        (body(max_tokens=7, parameters={"max_tokens": 8}), 8),
        (body(max_tokens=7, parameters={"max_new_tokens": 9}), 9),
        (body(parameters={"max_tokens": 8, "max_new_tokens": 9}), 9),
        (body(max_tokens=7, parameters={"max_tokens": None, "max_new_tokens": None}), 7),
        (body(max_tokens=None), 20),
        (body(max_new_tokens=7), 20),
        (body(max_tokens=2**31 - 1), 2**31 - 1),
    ],
)
def test_number_of_new_tokens(request_body: bytes, expected: int) -> None:
    assert read(request_body).max_new_tokens == expected


@pytest.mark.parametrize("name", ["temperature", "top_k", "top_p"])
def test_a_field_under_parameters_wins(name: str) -> None:
    top, own = (0.25, 0.5) if name != "top_k" else (25, 50)
    both = {name: top, "parameters": {name: own}}
    assert getattr(read(body(**both)), name) == own
    assert getattr(read(body(**{name: top, "parameters": {name: None}})), name) == top
    assert getattr(read(body(**{name: "wrong", "parameters": {name: own}})), name) == own


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("temperature", 0, 0.0),
        ("temperature", 0.0, 0.0),
        ("temperature", 1e-6, 1e-6),
        ("temperature", 2, 2.0),
        ("top_k", 0, None),
        ("top_k", 1, 1),
        ("top_p", 0.0, None),
        ("top_p", 0, None),
        ("top_p", 1e-9, 1e-9),
        ("top_p", 1, 1.0),
    ],
)
def test_top_level_values(name: str, value: float, expected: float | None) -> None:
    assert getattr(read(body(**{name: value})), name) == expected


@pytest.mark.parametrize(
    ("name", "value", "wanted"),
    [
        ("max_tokens", 0, "int in (0, 2147483647]"),
        ("max_tokens", -1, "int in (0, 2147483647]"),
        ("max_tokens", 2**31, "int in (0, 2147483647]"),
        ("max_tokens", 1.0, "int in (0, 2147483647]"),
        ("max_tokens", "7", "int in (0, 2147483647]"),
        ("max_tokens", True, "int in (0, 2147483647]"),
        ("temperature", -0.1, "float in [0.0, inf)"),
        ("temperature", "0.5", "float in [0.0, inf)"),
        ("temperature", False, "float in [0.0, inf)"),
        ("top_k", -1, "int32 in [0, 2147483647]"),
        ("top_k", 1.0, "int32 in [0, 2147483647]"),
        ("top_p", 1.1, "float in [0.0, 1.0]"),
        ("top_p", -0.1, "float in [0.0, 1.0]"),
        ("accumulate_tokens", 1, "bool"),
        ("accumulate_tokens", "true", "bool"),
    ],
)
def test_bad_top_level_values(name: str, value: Any, wanted: str) -> None:
    with pytest.raises(InvalidInput) as failure:
        read(body(**{name: value}))
    assert failure.value.message.startswith(f'parameter "{name}" must be {wanted}, got ')


def test_a_bad_max_tokens_under_parameters() -> None:
    with pytest.raises(InvalidInput, match='"max_tokens" must be int'):
        read(body(parameters={"max_tokens": "7"}))


@pytest.mark.parametrize("contract", [DOCUMENTED, SERVER], ids=lambda contract: contract.name)
def test_zero_temperature_under_parameters_is_refused(contract: Contract) -> None:
    with pytest.raises(InvalidInput, match='"temperature" must be float'):
        read(body(parameters={"temperature": 0.0}), contract)


def test_a_twin_is_checked_when_its_parameters_turn_comes() -> None:
    with pytest.raises(InvalidInput, match='"max_tokens"'):
        read(body(max_tokens=0, parameters={"details": 1}))
    with pytest.raises(InvalidInput, match='"priority"'):
        read(body(max_tokens=0, parameters={"priority": 6}))


def test_words_come_after_the_parameters() -> None:
    with pytest.raises(InvalidInput, match='"timeout"'):
        read(body(stop_words=1, parameters={"timeout": 0}))


@pytest.mark.parametrize("name", ["stop_words", "bad_words"])
@pytest.mark.parametrize(
    ("value", "words"),
    [
        (None, ()),
        ("", ()),
        ([], ()),
        ([""], ()),
        ("</s>", ("</s>",)),
        (["a", "", "你好"], ("a", "你好")),
        ("w" * 1024, ("w" * 1024,)),
        ([str(n) for n in range(64)], tuple(str(n) for n in range(64))),
    ],
    ids=lambda value: str(value)[:20],
)
def test_words(name: str, value: Any, words: tuple[str, ...]) -> None:
    parameters = read(body(**{name: value}))
    other = "bad_words" if name == "stop_words" else "stop_words"
    assert getattr(parameters, name) == words
    assert getattr(parameters, other) == ()


@pytest.mark.parametrize("name", ["stop_words", "bad_words"])
@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1, "must be a string or a list of strings, got 1"),
        (True, "must be a string or a list of strings, got true"),
        ({"a": "b"}, 'must be a string or a list of strings, got {"a":"b"}'),
        ([1], "must be a string or a list of strings, got [1]"),
        (["a", None], 'must be a string or a list of strings, got ["a",null]'),
        ([["a"]], 'must be a string or a list of strings, got [["a"]]'),
        (["a"] * 65, "must hold at most 64 strings, got 65"),
        ("w" * 1025, "must hold strings of at most 1024 characters, got 1025"),
        (["a", "w" * 1025], "must hold strings of at most 1024 characters, got 1025"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_bad_words_fields(name: str, value: Any, text: str) -> None:
    with pytest.raises(InvalidInput) as failure:
        read(body(**{name: value}))
    assert failure.value.message == f'"{name}" {text}'


@pytest.mark.parametrize(("value", "expected"), [(True, True), (False, False), (None, False)])
def test_accumulate_tokens(value: bool | None, expected: bool) -> None:
    assert read(body(accumulate_tokens=value)).accumulate is expected


@pytest.mark.parametrize("name", ["stream", "end_id", "min_length"])
@pytest.mark.parametrize("value", [None, 1, "x", [], {}, True])
def test_the_rest_is_ignored(name: str, value: Any) -> None:
    assert read(body(**{name: value})) == read(body())
