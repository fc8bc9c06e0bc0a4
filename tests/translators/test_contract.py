"""The tables say what contract §3 and §8 say; the copies here are written by hand."""

from __future__ import annotations

from typing import Any

import pytest

from translators.contract import (
    BEHAVIOURS,
    CONTRACTS,
    DIALECT,
    DIALECT_IGNORED,
    DOCUMENTED,
    MAX_PROMPT_TOKENS,
    SERVER,
    Contract,
    Range,
)

POSITIVE = "(0, 2147483647]"
ANY_UINT64 = "[0, 18446744073709551615]"
# name, type, range in both contracts, default in both contracts; in order of checking.
PARAMETERS = [
    ("temperature", "float", "(1e-06, inf)", "(0.0, 3.4028235e+38]", 1.0, 1.0),
    ("top_k", "int32", POSITIVE, "[0, 2147483647]", 1000, 1000),
    ("top_p", "float", "(1e-06, 1.0]", "(0.0, 1.0]", 1.0, 1.0),
    ("typical_p", "float", "(0.0, 1.0]", "(0.0, 1.0]", None, None),
    ("do_sample", "bool", None, None, None, None),
    ("seed", "uint64", "(0, 18446744073709551615]", "[0, 9223372036854775807]", None, None),
    ("repetition_penalty", "float", "(0.0, inf)", "(0.0, inf)", 1.0, 1.0),
    ("watermark", "bool", None, None, False, False),
    ("priority", "uint64", "[1, 5]", "[1, 5]", 5, 5),
    ("max_new_tokens", "int", POSITIVE, POSITIVE, 20, 20),
    ("details", "bool", None, None, False, False),
    ("batch_size", "int", POSITIVE, POSITIVE, 1, None),
    ("timeout", "uint64", "(0, 3600]", "[1, 65535]", 600, 65535),
    ("firstTokenCost", "uint64", ANY_UINT64, ANY_UINT64, None, None),
    ("decodeTime", "list of uint64", ANY_UINT64, ANY_UINT64, None, None),
]

BEHAVIOUR_VALUES: dict[str, tuple[Any, Any]] = {
    "text_limit": (4 * 1024 * 1024, None),
    "integer_times": (False, True),
    "unknown_finish": ("invalid flag", "invalid finishReason"),
    "end_on_last_token": ("eos_token", "length"),
    "recompute_header_needed": (False, True),
    "media_open_by_default": (False, True),
    "raw_failure_text": (False, True),
    "prune_deep": (False, True),
    "flush_tail": (True, False),
}


@pytest.mark.parametrize(("contract", "side"), [(DOCUMENTED, 0), (SERVER, 1)])
def test_the_parameter_table(contract: Contract, side: int) -> None:
    rows = [
        (row.name, row.kind.value, row.range and str(row.range), row.default)
        for row in contract.parameters
    ]
    assert rows == [
        (name, kind, (documented, server)[side], (default_page, default_server)[side])
        for name, kind, documented, server, default_page, default_server in PARAMETERS
    ]


@pytest.mark.parametrize(("contract", "side"), [(DOCUMENTED, 0), (SERVER, 1)])
def test_the_other_differences(contract: Contract, side: int) -> None:
    assert {row.field for row in BEHAVIOURS} == set(BEHAVIOUR_VALUES)
    values = {field: getattr(contract, field) for field in BEHAVIOUR_VALUES}
    assert values == {field: both[side] for field, both in BEHAVIOUR_VALUES.items()}


def test_a_prompt_has_a_mebi_of_tokens_at_most() -> None:
    assert MAX_PROMPT_TOKENS == 1_048_576


def test_only_the_recompute_fields_are_for_recomputation() -> None:
    rows = [row.name for row in DOCUMENTED.parameters if row.recompute_only]
    assert rows == ["firstTokenCost", "decodeTime"]


def test_the_contracts_by_name() -> None:
    assert {"documented": DOCUMENTED, "server": SERVER} == CONTRACTS
    assert [contract.name for contract in CONTRACTS.values()] == ["documented", "server"]


def test_a_parameter_by_name() -> None:
    assert DOCUMENTED.parameter("timeout").default == 600
    with pytest.raises(KeyError, match="nonsense"):
        DOCUMENTED.parameter("nonsense")


def test_every_dialect_field_of_the_contract_is_known() -> None:
    words = "max_tokens temperature top_p top_k stop_words bad_words accumulate_tokens"
    assert sorted(row.name for row in DIALECT) == sorted(words.split())
    assert sorted(DIALECT_IGNORED) == ["end_id", "min_length", "stream"]


@pytest.mark.parametrize(
    ("interval", "inside", "outside"),
    [
        (Range(0, 5), [0, 5], [-1, 6]),
        (Range(0, 5, open_low=True), [1, 5], [0, 6]),
        (Range(0.5), [0.5, 1e308], [0.4999999999999999]),
        (Range(high=1.0), [-1e308, 1.0], [1.0000000000000002]),
        (Range(0, 2**64 - 1), [2**64 - 1], [2**64]),
    ],
)
def test_a_range_holds_its_closed_ends(
    interval: Range, inside: list[float], outside: list[float]
) -> None:
    assert all(interval.holds(value) for value in inside)
    assert not any(interval.holds(value) for value in outside)


def test_a_range_without_ends_is_written_open() -> None:
    assert str(Range()) == "(-inf, inf)"
    assert str(Range(high=1.0)) == "(-inf, 1.0]"
