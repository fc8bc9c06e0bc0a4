"""Schemas from rows and from answers: what they let through is what the validator does."""

from __future__ import annotations

from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from translators.contract import CONTRACTS, DOCUMENTED, Kind, Parameter, Range
from translators.errors import InvalidInput
from translators.json_schema import of_answers, of_kind, of_parameter, of_parameters
from translators.request import checked_value


def accepts(schema: dict[str, Any], value: Any) -> bool:
    return jsonschema.Draft202012Validator(schema).is_valid(value)


VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 3),
    st.integers(2**31 - 2, 2**31 + 1),
    st.integers(2**63 - 1, 2**64 + 1),
    st.floats(0.5, 1.5),
    st.sampled_from([1e-6, 1.0000000000000002, 0.1]),
    st.text(max_size=1),
    st.lists(st.integers(-1, 2), max_size=2),
)


@given(st.sampled_from(sorted(CONTRACTS)), st.integers(0, 14), VALUES)
def test_a_schema_lets_through_what_the_validator_does(name: Any, index: int, value: Any) -> None:
    row = CONTRACTS[name].parameters[index]
    try:
        fits = value is None or checked_value(row.name, row.kind, row.range, value) is not None
    except InvalidInput:
        fits = False
    # JSON Schema calls 1.0 an integer, the contract does not.
    if isinstance(value, float) and value.is_integer() and row.kind is not Kind.FLOAT:
        return
    assert accepts(of_parameter(row), value) == fits


def test_rows_keep_their_names_defaults_and_meanings() -> None:
    rows = (
        Parameter("a", Kind.INT, Range(0, 5, open_low=True), 3, "what it does"),
        Parameter("b", Kind.BOOL, None, None, "something else"),
    )
    assert of_parameters(rows)["properties"] == {
        "a": {
            "type": ["integer", "null"],
            "exclusiveMinimum": 0,
            "maximum": 5,
            "default": 3,
            "description": "what it does",
        },
        "b": {"type": ["boolean", "null"], "description": "something else"},
    }


def test_the_bounds_of_a_list_are_those_of_its_items() -> None:
    schema = of_kind(Kind.UINT64_LIST, Range(0, 9))
    assert accepts(schema, [0, 9])
    assert not accepts(schema, [10])
    assert not accepts(schema, 3)


def test_answers_have_what_all_have_and_may_have_what_some_have() -> None:
    schema = of_answers({"a": 1, "b": None}, {"a": 2, "b": "x", "c": [1.5]})
    assert schema["required"] == ["a", "b"]
    for fine in ({"a": 1, "b": "y"}, {"a": 1, "b": None, "c": [1, 2.5]}):
        assert accepts(schema, fine)
    for wrong in ({"a": 1}, {"a": "1", "b": None}, {"a": 1, "b": 1}, {"a": 1, "b": None, "d": 1}):
        assert not accepts(schema, wrong)


def test_an_object_that_is_sometimes_null() -> None:
    schema = of_answers({"a": None}, {"a": {"b": 1}}, {"a": {"b": 2}})
    assert accepts(schema, {"a": None})
    assert accepts(schema, {"a": {"b": 3}})
    assert not accepts(schema, {"a": {}})
    assert not accepts(schema, {"a": 1})


@pytest.mark.parametrize(
    ("values", "name"),
    [
        ((1, 2), "integer"),
        ((1, 2.5), "number"),
        ((True,), "boolean"),
        ((None,), "null"),
        (("a", None), ["null", "string"]),
    ],
)
def test_types_of_plain_values(values: tuple[Any, ...], name: Any) -> None:
    assert of_answers(*values) == {"type": name}


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=2),
        lambda inner: (
            st.lists(inner, min_size=1, max_size=3)
            | st.dictionaries(st.sampled_from("abc"), inner, max_size=3)
        ),
        max_leaves=8,
    )
)
def test_an_answer_fits_its_own_schema(answer: Any) -> None:
    assert accepts(of_answers(answer), answer)


def test_the_tables_of_both_contracts_have_the_same_rows() -> None:
    names = {row.name for row in DOCUMENTED.parameters}
    assert set(of_parameters(DOCUMENTED.parameters)["properties"]) == names
