"""Body bytes to JSON, as strictly as contract §2 asks."""

from __future__ import annotations

import gc
import json
from typing import Any

import orjson
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

import translators.body
from tests.translators.requests import BOTH
from translators.body import json_type, parse_object
from translators.contract import DOCUMENTED, SERVER, Contract
from translators.errors import InvalidInput

NO_JSON = {
    "only a BOM": b"\xef\xbb\xbf",
    "two BOMs": b"\xef\xbb\xbf\xef\xbb\xbf{}",
    "BOM of UTF-16": '{"a":1}'.encode("utf-16"),
    "UTF-16 without a BOM": '{"a":1}'.encode("utf-16-le"),
    "only spaces": b" \r\n\t",
    "a zero byte": b"\x00",
    "truncated": b'{"a":',
    "invalid UTF-8": b'{"a":"\xff"}',
    "overlong UTF-8": b'{"a":"\xc0\xaf"}',
    "half a character": b'{"a":"\xe4\xbd"}',
    "a surrogate in UTF-8": b'{"a":"\xed\xa0\x80"}',
    "invalid UTF-8 in a key": b'{"\xff":1}',
    "a lone high surrogate": b'{"a":"\\ud800"}',
    "a lone low surrogate": b'{"a":"\\udc00"}',
    "surrogates the wrong way round": b'{"a":"\\ude00\\ud83d"}',
    "a lone surrogate in a key": b'{"\\ud800":1}',
    "NaN": b'{"a":NaN}',
    "Infinity": b'{"a":Infinity}',
    "-Infinity": b'{"a":-Infinity}',
    "trailing garbage": b"{}x",
    "a trailing zero byte": b"{}\x00",
    "two documents": b"{}{}",
    "number overflow": b'{"a":1e400}',
    "negative number overflow": b'{"a":-1e400}',
    "5000 digits": b'{"a":' + b"9" * 5000 + b"}",
    "5000 negative digits": b'{"a":-' + b"9" * 5000 + b"}",
    "absurd nesting": b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "absurd nesting of objects": b'{"a":' * 5000 + b"1" + b"}" * 5000,
    "unclosed nesting": b"[" * 1_000_000,
    "a comment": b"{} // no",
    "single quotes": b"{'a':1}",
    "a trailing comma": b'{"a":1,}',
    "a leading zero": b'{"a":01}',
    "a plus sign": b'{"a":+1}',
    "no digit before the point": b'{"a":.5}',
    "a control character in a string": b'{"a":"\x01"}',
    "a wrong escape": b'{"a":"\\x41"}',
    "no JSON at all": b"id=a123&text_input=hello",
}


@pytest.mark.parametrize("contract", BOTH, ids=lambda contract: contract.name)
@pytest.mark.parametrize("body", NO_JSON.values(), ids=NO_JSON.keys())
def test_what_is_no_json_is_refused(body: bytes, contract: Contract) -> None:
    with pytest.raises(InvalidInput, match=r"^the body is not valid JSON: .* at line 1, column"):
        parse_object(body, contract)


def test_an_empty_body_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"^the body is empty"):
        parse_object(b"", DOCUMENTED)


@pytest.mark.parametrize(
    ("body", "got"),
    [
        (b"[]", "an array"),
        (b"null", "null"),
        (b"true", "a boolean"),
        (b"1", "a number"),
        (b"1.5", "a number"),
        (b'"{}"', "a string"),
    ],
)
def test_the_body_must_be_an_object(body: bytes, got: str) -> None:
    with pytest.raises(InvalidInput, match=f"^the body must be a JSON object, got {got}$"):
        parse_object(body, DOCUMENTED)


def test_the_place_of_an_error_is_told() -> None:
    with pytest.raises(InvalidInput, match="at line 2, column 7"):
        parse_object(b'{"a":1,\n "b": x}', DOCUMENTED)


@pytest.mark.parametrize(
    ("body", "document"),
    [
        (b"\xef\xbb\xbf{}", {}),
        (b" \r\n\t{ } \r\n\t", {}),
        (b'{"a":1,"a":"2"}', {"a": "2"}),
        (b'{"a":1,"a":null}', {"a": None}),
        (b'{"a":"\\ud83d\\ude00"}', {"a": "😀"}),
        ('{"é":"你好"}'.encode(), {"é": "你好"}),
        (b'{"a":"\\u0000"}', {"a": "\x00"}),
        (b'{"a":18446744073709551615}', {"a": 2**64 - 1}),
        (b'{"a":-9223372036854775808}', {"a": -(2**63)}),
        (b'{"":{}}', {"": {}}),
    ],
)
def test_what_is_accepted(body: bytes, document: dict[str, Any]) -> None:
    assert parse_object(body, DOCUMENTED) == document


def test_integers_beyond_64_bits_are_no_integers() -> None:
    document = parse_object(b'{"a":18446744073709551616,"b":-9223372036854775809}', DOCUMENTED)
    assert all(type(value) is float for value in document.values())


def nested(depth: int, kind: str) -> bytes:
    """A body of `depth` containers inside each other, the body itself included."""
    inner = depth - 1
    if kind == "arrays":
        return b'{"a":' + b"[" * inner + b"]" * inner + b"}"
    return b'{"a":' * inner + b"{}" + b"}" * inner


def depth_of(value: Any) -> int:
    match value:
        case dict():
            return 1 + max(map(depth_of, value.values()), default=0)
        case list():
            return 1 + max(map(depth_of, value), default=0)
        case _:
            return 0


@pytest.mark.parametrize("contract", BOTH, ids=lambda contract: contract.name)
@pytest.mark.parametrize("kind", ["arrays", "objects"])
def test_eleven_containers_pass_whole(contract: Contract, kind: str) -> None:
    assert depth_of(parse_object(nested(11, kind), contract)) == 11


@pytest.mark.parametrize("kind", ["arrays", "objects"])
@pytest.mark.parametrize("depth", [12, 13, 1000])
def test_the_twelfth_is_refused(kind: str, depth: int) -> None:
    with pytest.raises(InvalidInput, match="nests more than 11 containers"):
        parse_object(nested(depth, kind), DOCUMENTED)


@pytest.mark.parametrize("kind", ["arrays", "objects"])
@pytest.mark.parametrize("depth", [12, 13, 1000])
def test_the_server_drops_the_twelfth(kind: str, depth: int) -> None:
    assert parse_object(nested(depth, kind), SERVER) == parse_object(nested(11, kind), SERVER)


def test_only_the_deep_containers_are_dropped() -> None:
    deep = b'{"keep":1,"drop":{"x":1},"drop too":[]}'
    body = b'{"text_input":"x","a":' + b"[" * 9 + deep + b',2,"s",null' + b"]" * 9 + b"}"
    inner: Any = parse_object(body, SERVER)["a"]
    for _ in range(8):
        (inner,) = inner
    assert inner == [{"keep": 1}, 2, "s", None]
    with pytest.raises(InvalidInput):
        parse_object(body, DOCUMENTED)


def test_deep_members_of_a_list_are_dropped() -> None:
    body = b'{"a":' + b"[" * 10 + b"1,[2],{},3" + b"]" * 10 + b"}"
    inner: Any = parse_object(body, SERVER)["a"]
    for _ in range(9):
        (inner,) = inner
    assert inner == [1, 3]


@pytest.mark.parametrize(
    ("value", "name"),
    [
        (None, "null"),
        (True, "a boolean"),
        (1, "a number"),
        (1.0, "a number"),
        ("", "a string"),
        ([], "an array"),
        ({}, "an object"),
    ],
)
def test_json_type(value: object, name: str) -> None:
    assert json_type(value) == name


KEYS = st.text("ab你", max_size=3)


@given(
    st.recursive(
        st.text('[]{}"\\\\/bn', max_size=5) | st.integers(0, 9),
        lambda inner: st.lists(inner, max_size=2) | st.dictionaries(KEYS, inner, max_size=2),
        max_leaves=20,
    ),
    st.integers(0, 14),
    st.sampled_from([None, 1, "\t"]),
)
def test_depth_counts_containers_and_not_what_strings_hold(
    value: Any, more: int, indent: int | str | None
) -> None:
    for _ in range(more):
        value = [value, "]"]
    body = json.dumps({"a": value}, indent=indent).encode()
    if depth_of(value) <= 10:
        assert parse_object(body, DOCUMENTED) == {"a": value}
    else:
        with pytest.raises(InvalidInput, match="nests more than 11 containers"):
            parse_object(body, DOCUMENTED)
        assert depth_of(parse_object(body, SERVER)) == 11


@pytest.mark.parametrize("collecting", [True, False])
def test_a_big_body_leaves_the_garbage_collector_as_it_was(collecting: bool) -> None:
    big = b'{"a":[' + b"[]," * 400_000 + b"1]}"
    (gc.enable if collecting else gc.disable)()
    try:
        assert len(parse_object(big, DOCUMENTED)["a"]) == 400_001
        assert gc.isenabled() is collecting
        with pytest.raises(InvalidInput):
            parse_object(big + b"x", DOCUMENTED)
        assert gc.isenabled() is collecting
    finally:
        gc.enable()


TEXT = st.text(st.characters(codec="utf-8"), max_size=20)
FLAT = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT
)
VALUES = st.recursive(
    FLAT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=8,
).filter(lambda value: depth_of(value) <= 10)


@given(st.dictionaries(KEYS, VALUES, max_size=5), st.booleans(), st.sampled_from(BOTH))
def test_json_of_usual_depth_is_read_as_it_is(
    document: dict[str, Any], ascii_only: bool, contract: Contract
) -> None:
    body = json.dumps(document, ensure_ascii=ascii_only).encode()
    assert parse_object(body, contract) == document


@pytest.fixture
def all_are_big(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(translators.body, "_BIG", 0)


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(2**63 - 2, 2**64 + 2)
    | st.floats()
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@pytest.mark.usefixtures("all_are_big")
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.dictionaries(st.text(), VALUES))
def test_a_big_body_is_read_like_a_small_one(document: dict[str, Any]) -> None:
    assume(depth_of(document) <= 11)
    body = json.dumps(document).encode("utf-8")
    try:
        expected = orjson.loads(body)
    except orjson.JSONDecodeError:
        with pytest.raises(InvalidInput):
            parse_object(body, SERVER)
        return
    # As text, so that 1 and 1.0 and true differ.
    assert repr(parse_object(body, SERVER)) == repr(expected)


@pytest.mark.usefixtures("all_are_big")
@pytest.mark.parametrize("value", [2**64 - 1, 2**64, -(2**63), -(2**63) - 1, 10**30])
def test_a_big_body_has_the_integers_of_a_small_one(value: int) -> None:
    body = b'{"a":[{"b":%d}]}' % value
    assert repr(parse_object(body, DOCUMENTED)) == repr(orjson.loads(body))


@pytest.mark.usefixtures("all_are_big")
@pytest.mark.parametrize("body", NO_JSON.values(), ids=NO_JSON)
def test_a_big_body_is_refused_like_a_small_one(body: bytes) -> None:
    with pytest.raises(InvalidInput, match="not valid JSON"):
        parse_object(body, DOCUMENTED)


def test_many_values_are_not_looked_at_one_by_one() -> None:
    many = b'{"a":[%b]}' % b",".join([b"18446744073709551616"] * 100_000)
    numbers = parse_object(many, DOCUMENTED)["a"]
    assert {type(number) for number in numbers} == {float}
