"""Every parameter at, below and above each bound, and of each wrong type (contract §3, §8).

The literals are the contract's, written by hand: they do not come from the table
that the reader uses.
"""

from __future__ import annotations

from itertools import combinations
from typing import NamedTuple

import pytest

from tests.page import PAGE_REQUEST
from tests.translators.requests import BOTH, read, read_one, with_parameters
from translators.contract import DOCUMENTED, SERVER, Contract
from translators.errors import InvalidInput
from translators.request import Parameters

HUGE = "9" * 308
"""An integer beyond 64 bits that still is a number."""


class Case(NamedTuple):
    """What one parameter takes and refuses under one contract."""

    name: str
    contract: Contract
    takes: list[str]
    refuses: list[str]
    shown_range: str | None


def both(name: str, takes: list[str], refuses: list[str], shown: str | None = None) -> list[Case]:
    return [Case(name, contract, takes, refuses, shown) for contract in BOTH]


INT32 = ["1", "2147483647"]
NOT_POSITIVE_INT32 = ["0", "-1", "2147483648", "-2147483648", HUGE]
CASES = [
    Case(
        "temperature",
        DOCUMENTED,
        ["1.0000000000000002e-06", "1e-5", "1", "0.5", "2.0", "1e308", HUGE],
        ["1e-6", "0.000001", "9.999999999999999e-07", "0", "0.0", "-0.0", "-1", "1e-400"],
        "(1e-06, inf)",
    ),
    Case(
        "temperature",
        SERVER,
        ["5e-324", "1e-6", "1", "3.4028235e38"],
        ["0", "0.0", "-0.0", "-5e-324", "3.4028236e38", "1e39", HUGE, "1e-400"],
        "(0.0, 3.4028235e+38]",
    ),
    Case("top_k", DOCUMENTED, INT32, NOT_POSITIVE_INT32, "(0, 2147483647]"),
    Case(
        "top_k", SERVER, ["0", *INT32], ["-1", "2147483648", "-2147483648", HUGE], "[0, 2147483647]"
    ),
    Case(
        "top_p",
        DOCUMENTED,
        ["1.0000000000000002e-06", "1", "1.0", "0.5"],
        ["1e-6", "0", "-0.5", "1.0000000000000002", "2", HUGE],
        "(1e-06, 1.0]",
    ),
    Case(
        "top_p",
        SERVER,
        ["5e-324", "1e-6", "1", "1.0"],
        ["0", "0.0", "-0.5", "1.0000000000000002", HUGE],
        "(0.0, 1.0]",
    ),
    *both(
        "typical_p",
        ["5e-324", "0.5", "1", "1.0"],
        ["0", "0.0", "-1.0", "1.0000000000000002", HUGE],
        "(0.0, 1.0]",
    ),
    *both("do_sample", ["true", "false"], []),
    Case(
        "seed",
        DOCUMENTED,
        ["1", "9223372036854775807", "9223372036854775808", "18446744073709551615"],
        ["0", "-1", "18446744073709551616", HUGE],
        "(0, 18446744073709551615]",
    ),
    Case(
        "seed",
        SERVER,
        ["0", "1", "9223372036854775807"],
        ["-1", "9223372036854775808", "18446744073709551615", "18446744073709551616", HUGE],
        "[0, 9223372036854775807]",
    ),
    *both(
        "repetition_penalty",
        ["5e-324", "0.5", "1", "1.1", "1e308", HUGE],
        ["0", "0.0", "-0.0", "-1"],
        "(0.0, inf)",
    ),
    *both("watermark", ["true", "false"], []),
    *both("priority", ["1", "2", "3", "4", "5"], ["0", "6", "-1", HUGE], "[1, 5]"),
    *both("max_new_tokens", INT32, NOT_POSITIVE_INT32, "(0, 2147483647]"),
    *both("details", ["true", "false"], []),
    *both("batch_size", INT32, NOT_POSITIVE_INT32, "(0, 2147483647]"),
    Case("timeout", DOCUMENTED, ["1", "3600"], ["0", "3601", "65535", "-1", HUGE], "(0, 3600]"),
    Case("timeout", SERVER, ["1", "3601", "65535"], ["0", "65536", "-1", HUGE], "[1, 65535]"),
    *both(
        "firstTokenCost",
        ["0", "1", "18446744073709551615"],
        ["-1", "18446744073709551616", HUGE],
        "[0, 18446744073709551615]",
    ),
    *both(
        "decodeTime",
        ["[]", "[0]", "[0,1,18446744073709551615]"],
        ["[-1]", "[0,-1]", "[18446744073709551616]", "[0,1,18446744073709551616]"],
        "[0, 18446744073709551615]",
    ),
]

# All names in the order of contract §3, with the types that each must refuse.
NO_NUMBER = ['"1"', '""', '"true"', "true", "false", "[]", "[1]", "{}", '{"a":1}']
NO_INTEGER = [*NO_NUMBER, "1.0", "1e0", "1e2", "0.5", "-1.5"]
NO_BOOLEAN = ['"true"', '"false"', '""', "0", "1", "1.0", "[]", "[true]", "{}"]
NO_LIST = [
    *['"1"', '""', "true", "1", "0", "1.0", "{}", '{"0":1}'],
    *["[1.0]", "[1e2]", '["1"]', "[true]", "[null]", "[[1]]", "[{}]", "[1,2.5]"],
]
WRONG = {
    "temperature": NO_NUMBER,
    "top_k": NO_INTEGER,
    "top_p": NO_NUMBER,
    "typical_p": NO_NUMBER,
    "do_sample": NO_BOOLEAN,
    "seed": NO_INTEGER,
    "repetition_penalty": NO_NUMBER,
    "watermark": NO_BOOLEAN,
    "priority": NO_INTEGER,
    "max_new_tokens": NO_INTEGER,
    "details": NO_BOOLEAN,
    "batch_size": NO_INTEGER,
    "timeout": NO_INTEGER,
    "firstTokenCost": NO_INTEGER,
    "decodeTime": NO_LIST,
}
ORDER = list(WRONG)

TAKEN = [(case, literal) for case in CASES for literal in case.takes]
REFUSED = [(case, literal) for case in CASES for literal in case.refuses]
WRONG_TYPES = [
    (contract, name, literal)
    for contract in BOTH
    for name, literals in WRONG.items()
    for literal in literals
]


def label(value: object) -> str:
    match value:
        case Case():
            return f"{value.contract.name}-{value.name}"
        case Contract():
            return value.name
        case _:
            return str(value)[:24]


def test_every_parameter_is_covered_in_both_contracts() -> None:
    for contract in BOTH:
        assert [row.name for row in contract.parameters] == ORDER
        assert [case.name for case in CASES if case.contract is contract] == ORDER


@pytest.mark.parametrize(("case", "literal"), TAKEN, ids=label)
def test_taken(case: Case, literal: str) -> None:
    read_one(case.name, literal, case.contract)


@pytest.mark.parametrize(("case", "literal"), REFUSED, ids=label)
def test_refused_with_name_range_and_value(case: Case, literal: str) -> None:
    with pytest.raises(InvalidInput) as failure:
        read_one(case.name, literal, case.contract)
    text = failure.value.message
    assert f'"{case.name}"' in text
    assert case.shown_range is not None
    assert case.shown_range in text
    assert "got " in text
    assert len(text) < 250


@pytest.mark.parametrize(("contract", "name", "literal"), WRONG_TYPES, ids=label)
def test_wrong_types_are_refused(contract: Contract, name: str, literal: str) -> None:
    with pytest.raises(InvalidInput, match=f'^parameter "{name}" must be'):
        read_one(name, literal, contract)


@pytest.mark.parametrize("contract", BOTH, ids=label)
@pytest.mark.parametrize("name", ORDER)
def test_null_is_absent(contract: Contract, name: str) -> None:
    assert read_one(name, "null", contract) == read_one("unknown", "1", contract)


@pytest.mark.parametrize("contract", BOTH, ids=label)
@pytest.mark.parametrize(("first", "second"), list(combinations(ORDER, 2)))
def test_the_first_failure_in_the_contracts_order_wins(
    contract: Contract, first: str, second: str
) -> None:
    body = with_parameters({second: '"wrong"', first: '"wrong"'})
    with pytest.raises(InvalidInput, match=f'^parameter "{first}" must be'):
        read(body, contract, recompute=True)


def test_defaults_of_the_documented_contract() -> None:
    assert read(b'{"text_input":"x"}') == Parameters(
        temperature=None,
        top_k=None,
        top_p=None,
        do_sample=None,
        seed=None,
        repetition_penalty=None,
        priority=5,
        max_new_tokens=20,
        details=False,
        timeout=600,
        stop_words=(),
        bad_words=(),
        accumulate=False,
    )


def test_the_server_contract_waits_longer_by_default() -> None:
    assert read(b'{"text_input":"x"}', SERVER).timeout == 65535


@pytest.mark.parametrize("contract", BOTH, ids=label)
def test_the_pages_own_request(contract: Contract) -> None:
    assert read(PAGE_REQUEST, contract) == Parameters(
        temperature=1.0,
        top_k=10,
        top_p=0.99,
        do_sample=True,
        seed=123,
        repetition_penalty=1.1,
        priority=5,
        max_new_tokens=5,
        details=True,
        timeout=10,
    )


def test_float_fields_are_floats_and_integers_stay_exact() -> None:
    parameters = read(with_parameters({"temperature": "1", "seed": "18446744073709551615"}))
    assert isinstance(parameters.temperature, float)
    assert parameters.seed == 2**64 - 1


def test_of_duplicate_keys_the_last_counts() -> None:
    body = b'{"text_input":"x","parameters":{"seed":"wrong","seed":7}}'
    assert read(body).seed == 7
    body = b'{"text_input":"x","parameters":{"seed":7},"parameters":{"top_k":3}}'
    assert (read(body).seed, read(body).top_k) == (None, 3)


@pytest.mark.parametrize("literal", ['"x"', "1", "true", "[]", "[1]", '"{}"'])
def test_parameters_must_be_an_object(literal: str) -> None:
    with pytest.raises(InvalidInput, match=r'^"parameters" must be an object, got '):
        read(f'{{"text_input":"x","parameters":{literal}}}'.encode())


@pytest.mark.parametrize("literal", ["null", "{}", '{"unknown":{"deep":[1]}}'])
def test_absent_parameters(literal: str) -> None:
    body = f'{{"text_input":"x","parameters":{literal}}}'.encode()
    assert read(body) == read(b'{"text_input":"x"}')


@pytest.mark.parametrize("name", ["firstTokenCost", "decodeTime"])
def test_recompute_fields_are_looked_at_where_the_contract_says(name: str) -> None:
    body = with_parameters({name: '"wrong"'})
    with pytest.raises(InvalidInput, match=name):
        read(body, DOCUMENTED)
    read(body, SERVER)
    with pytest.raises(InvalidInput, match=name):
        read(body, SERVER, recompute=True)


@pytest.mark.parametrize(
    ("literal", "shown"),
    [
        ('"' + "p" * 1000 + '"', '"' + "p" * 63 + "..."),
        ("[" + "1," * 50_000 + "1]", "[" + "1," * 31 + "1..."),
        ('{"a":{"b":"' + "你" * 500 + '"}}', '{"a":{"b":"' + "你" * 53 + "..."),
        ('"short"', '"short"'),
        ('"\\u0000\\n"', '"\\u0000\\n"'),
    ],
)
def test_what_was_got_is_cut_short(literal: str, shown: str) -> None:
    with pytest.raises(InvalidInput) as failure:
        read(with_parameters({"top_k": literal}))
    assert failure.value.message == (
        f'parameter "top_k" must be int32 in (0, 2147483647], got {shown}'
    )
