"""Requests in the TGI shape: what is asked, and what is refused with the reason."""

from __future__ import annotations

from typing import Any

import pytest

from translators.contract import DOCUMENTED, SERVER
from translators.errors import InvalidInput
from translators.sampling import ModelDefaults, Sampling, resolve_sampling
from translators.tgi_request import (
    TGIS_OWN,
    TgiParameters,
    read_tgi,
    read_tgi_parameters,
    tgi_parameters,
)

LIMIT = 40 * 2**20


def parameters(stream: bool = True, **given: Any) -> TgiParameters:
    return read_tgi_parameters(given, DOCUMENTED, stream=stream)


def sampling(defaults: ModelDefaults | None = None, **given: Any) -> Sampling:
    common = parameters(**given).common
    return resolve_sampling(common, defaults or ModelDefaults(), vocab_size=1000, room=500)


@pytest.mark.parametrize(
    ("document", "reason"),
    [
        ({}, '"inputs" must be a string, got nothing'),
        ({"inputs": None}, "got nothing"),
        ({"inputs": ["a"]}, "got an array"),
        ({"inputs": 3}, "got a number"),
        ({"inputs": ""}, "got 0"),
        ({"inputs": "x" * (4 * 2**20 + 1)}, "1 to 4194304 characters"),
        ({"inputs": "\U0001f600" * (2 * 2**20 + 1)}, "got 4194306"),
    ],
)
def test_inputs_that_are_no_prompt(document: dict[str, Any], reason: str) -> None:
    with pytest.raises(InvalidInput, match=reason):
        read_tgi(document, DOCUMENTED, stream=True, body_limit=LIMIT)


def test_the_text_limit_is_the_contracts() -> None:
    text = "x" * (4 * 2**20 + 1)
    assert read_tgi({"inputs": text}, SERVER, stream=True, body_limit=LIMIT).inputs == text


@pytest.mark.parametrize(
    ("route", "given", "expected"),
    [(True, False, True), (False, True, False), (None, True, True), (None, None, False)],
)
def test_only_the_route_for_both_looks_at_stream(
    route: bool | None, given: Any, expected: bool
) -> None:
    document = {"inputs": "a", "stream": given}
    assert read_tgi(document, DOCUMENTED, stream=route, body_limit=1).stream is expected


def test_a_stream_that_is_no_boolean_is_refused_where_it_counts() -> None:
    with pytest.raises(InvalidInput, match="stream"):
        read_tgi({"inputs": "a", "stream": 1}, DOCUMENTED, stream=None, body_limit=1)


def test_nothing_given_is_greedy_with_the_contracts_defaults() -> None:
    for raw in (None, {}, {"temperature": None, "stop": None, "grammar": None}):
        read = read_tgi_parameters(raw, DOCUMENTED, stream=True)
        assert read.common.max_new_tokens == 20
        assert read.common.timeout == 600
        assert (read.details, read.prefill, read.return_full_text) == (False, False, False)
        assert (read.truncate, read.stop) == (None, ())
    assert sampling(ModelDefaults(do_sample=True)).greedy


@pytest.mark.parametrize(
    "given",
    [
        {"do_sample": True},
        {"temperature": 0.5},
        {"top_k": 5},
        {"top_p": 0.5},
        {"typical_p": 0.5},
        {"do_sample": False, "temperature": 0.5},
    ],
)
def test_one_sampling_parameter_is_enough_to_sample(given: dict[str, Any]) -> None:
    assert not sampling(**given).greedy


def test_values_reach_the_engine() -> None:
    given = {
        "temperature": 0.5,
        "top_k": 5,
        "top_p": 0.9,
        "repetition_penalty": 1.5,
        "frequency_penalty": -0.5,
        "seed": 7,
        "max_new_tokens": 9,
        "top_n_tokens": 3,
    }
    assert sampling(**given) == Sampling(0.5, 5, 0.9, 1.5, 7, 9, (), 3, -0.5)


@pytest.mark.parametrize(
    ("stream", "given", "expected"),
    [
        (True, {}, 0),
        (True, {"top_n_tokens": 5}, 5),
        (False, {}, None),
        (False, {"details": True}, 0),
        (False, {"details": True, "top_n_tokens": 2}, 2),
        (False, {"top_n_tokens": 2}, None),
        (False, {"decoder_input_details": True}, 0),
    ],
)
def test_log_probabilities_are_asked_for_where_they_are_shown(
    stream: bool, given: dict[str, Any], expected: int | None
) -> None:
    assert parameters(stream, **given).common.logprobs == expected


def test_details_of_the_prompt_are_details() -> None:
    read = parameters(stream=False, decoder_input_details=True)
    assert (read.details, read.prefill) == (True, True)


def test_details_of_the_prompt_are_not_for_streams() -> None:
    with pytest.raises(InvalidInput, match="decoder_input_details"):
        parameters(stream=True, decoder_input_details=True)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("best_of", 2),
        ("best_of", 0),
        ("frequency_penalty", 2.1),
        ("frequency_penalty", -2.1),
        ("frequency_penalty", True),
        ("return_full_text", 1),
        ("truncate", 0),
        ("truncate", 1.0),
        ("decoder_input_details", "true"),
        ("top_n_tokens", 6),
        ("top_n_tokens", -1),
        ("temperature", 0.0),
        ("top_k", 0),
        ("top_p", 1.1),
        ("typical_p", 0.0),
        ("seed", -1),
        ("max_new_tokens", 0),
        ("repetition_penalty", 0),
        ("details", "yes"),
        ("do_sample", 1),
        ("watermark", 0),
        ("stop", [1]),
        ("stop", {}),
        ("stop", ["x"] * 65),
        ("grammar", {"type": "json", "value": {}}),
        ("adapter_id", "lora-1"),
    ],
)
def test_what_is_refused_is_named(name: str, value: Any) -> None:
    with pytest.raises(InvalidInput, match=f'"{name}"'):
        parameters(stream=False, **{name: value})


@pytest.mark.parametrize("raw", [[], "x", 3, True])
def test_parameters_that_are_no_object(raw: Any) -> None:
    with pytest.raises(InvalidInput, match='"parameters" must be an object'):
        read_tgi_parameters(raw, DOCUMENTED, stream=True)


@pytest.mark.parametrize(
    ("stop", "expected"), [(["a", "", "b"], ("a", "b")), ("a", ("a",)), ([], ())]
)
def test_stop_sequences(stop: Any, expected: tuple[str, ...]) -> None:
    assert parameters(stop=stop).stop == expected


def test_the_rows_are_mindies_where_the_names_are() -> None:
    rows = {row.name: row for row in tgi_parameters(DOCUMENTED)}
    assert rows["temperature"] is DOCUMENTED.parameter("temperature")
    assert {row.name for row in TGIS_OWN} <= set(rows)
    assert "priority" not in rows
