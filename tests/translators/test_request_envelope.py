"""Who asks and what: `id` and `text_input` (contract §2)."""

from __future__ import annotations

import json
import string
from typing import Any

import pytest

from tests.translators.requests import BOTH, body, envelope_of
from translators.contract import DOCUMENTED, SERVER, Contract
from translators.errors import InvalidInput
from translators.media import check_modalities
from translators.request import read_id, read_parameters, required_id, usable_id, utf16_units

ALL_LETTERS = string.ascii_letters + string.digits + "_-"
GOOD_IDS = ["a123", "0", "-", "_", ALL_LETTERS, "x" * 256]
BAD_IDS = [
    "",
    "x" * 257,
    "a b",
    "a\n",
    "\n",
    "a.b",
    "a/b",
    "é",
    "你",
    "a\x00",
    "\uff11",
    " a",
    "a ",
]
WRONG_IDS = [1, 1.5, True, False, [], ["a"], {}, {"a": 1}]


@pytest.mark.parametrize("good", GOOD_IDS)
def test_good_ids(good: str) -> None:
    assert envelope_of(body(id=good)).client_id == good
    assert usable_id(good) == good


@pytest.mark.parametrize("bad", [*BAD_IDS, *WRONG_IDS], ids=repr)
def test_bad_ids(bad: Any) -> None:
    with pytest.raises(InvalidInput, match=r'^"id" must be a string that matches') as failure:
        envelope_of(body(id=bad))
    assert len(failure.value.message) < 200


@pytest.mark.parametrize(
    "absent", [body(), body(id=None), b'{"text_input":"x","id":"a","id":null}']
)
def test_an_absent_id(absent: bytes) -> None:
    assert envelope_of(absent).client_id is None


@pytest.mark.parametrize("header", [None, *BAD_IDS], ids=repr)
def test_a_header_that_could_be_no_id_is_not_used(header: str | None) -> None:
    assert usable_id(header) is None


def test_the_id_alone() -> None:
    assert read_id({"id": "a"}) == "a"
    assert read_id({}) is None
    assert required_id({"id": "a"}) == "a"


@pytest.mark.parametrize("document", [{}, {"id": None}])
def test_an_id_that_must_be_there(document: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match='"id" must be the id of a live request, got nothing'):
        required_id(document)


def test_the_id_is_checked_before_the_text() -> None:
    with pytest.raises(InvalidInput, match=r'^"id"'):
        envelope_of(b'{"text_input":"","id":""}')


def test_the_text_is_checked_before_the_parameters() -> None:
    with pytest.raises(InvalidInput, match=r'^"text_input"'):
        envelope_of(b'{"parameters":1,"text_input":""}')


def test_the_parameters_wait_until_the_prompt_is_counted() -> None:
    envelope = envelope_of(body(parameters=7))
    with pytest.raises(InvalidInput, match=r'^"parameters"'):
        read_parameters(envelope, DOCUMENTED)


@pytest.mark.parametrize(
    ("literal", "got"),
    [
        ("null", "nothing"),
        ("1", "a number"),
        ("1.5", "a number"),
        ("true", "a boolean"),
        ("{}", "an object"),
        ('{"text":"x"}', "an object"),
    ],
)
def test_the_text_must_be_a_string_or_a_list(literal: str, got: str) -> None:
    with pytest.raises(InvalidInput, match=f'"text_input" must be a string or a list, got {got}'):
        envelope_of(f'{{"text_input":{literal}}}'.encode())


def test_no_text_at_all() -> None:
    with pytest.raises(InvalidInput, match='"text_input" must be a string or a list, got nothing'):
        envelope_of(b"{}")


@pytest.mark.parametrize("contract", BOTH, ids=lambda contract: contract.name)
@pytest.mark.parametrize("text", ["x", " ", "\x00", "你好 😀", '{"a":1}', "\ufffd"])
def test_any_other_text_is_taken_as_it_is(text: str, contract: Contract) -> None:
    assert envelope_of(body(text_input=text), contract).text == text


@pytest.mark.parametrize(
    ("text", "units"), [("", 0), ("a", 1), ("你", 1), ("\uffff", 1), ("\U00010000", 2), ("a😀b", 4)]
)
def test_utf16_units(text: str, units: int) -> None:
    assert utf16_units(text) == units


PAGE_LIMIT = 4 * 1024 * 1024


def raw_text(text: str) -> bytes:
    return b'{"text_input":"' + text.encode() + b'"}'


@pytest.mark.parametrize(
    "text",
    ["a" * PAGE_LIMIT, "你" * PAGE_LIMIT, "😀" * (PAGE_LIMIT // 2), "a" * (PAGE_LIMIT - 2) + "😀"],
    ids=["ASCII", "Chinese", "emoji", "emoji at the end"],
)
def test_the_longest_text_of_the_page(text: str) -> None:
    assert len(envelope_of(raw_text(text)).text) == len(text)


@pytest.mark.parametrize(
    "text",
    ["a" * (PAGE_LIMIT + 1), "😀" * (PAGE_LIMIT // 2) + "a", "a" * (PAGE_LIMIT - 1) + "😀"],
    ids=["ASCII", "emoji", "emoji at the end"],
)
def test_one_unit_more_is_refused_without_an_echo(text: str) -> None:
    with pytest.raises(InvalidInput) as failure:
        envelope_of(raw_text(text))
    assert failure.value.message == (
        '"text_input" must hold 1 to 4194304 characters (UTF-16 code units), got 4194305'
    )


def test_the_servers_limit_is_the_body_limit() -> None:
    text = "😀" * 5
    assert envelope_of(raw_text(text), SERVER, body_limit=10).text == text
    with pytest.raises(InvalidInput, match=r"1 to 9 characters .* got 10"):
        envelope_of(raw_text(text), SERVER, body_limit=9)
    assert envelope_of(raw_text("a" * (PAGE_LIMIT + 1)), SERVER).text[-1] == "a"


def test_the_pages_limit_does_not_move_with_the_body_limit() -> None:
    assert envelope_of(raw_text("a" * 11), DOCUMENTED, body_limit=10).text == "a" * 11


def text_part(text: Any) -> dict[str, Any]:
    return {"type": "text", "text": text}


def test_text_parts_are_joined_in_order() -> None:
    parts = [text_part("My name "), text_part("is "), text_part("你😀")]
    assert envelope_of(body(text_input=parts)).text == "My name is 你😀"


def test_text_parts_share_one_limit() -> None:
    parts = [text_part("a" * 6), text_part("b" * 6)]
    with pytest.raises(InvalidInput, match=r"1 to 10 characters .* got 12"):
        envelope_of(body(text_input=parts), SERVER, body_limit=10)


def test_one_string_in_a_list_is_triton_dialect() -> None:
    assert envelope_of(body(text_input=["hello"])).text == "hello"
    with pytest.raises(InvalidInput, match=r'"text_input\[0\]" must be an object .* got a string'):
        envelope_of(body(text_input=["hello"]), dialect=False)
    with pytest.raises(InvalidInput, match='"text_input" must hold 1 to'):
        envelope_of(body(text_input=[""]))


@pytest.mark.parametrize(
    ("parts", "text"),
    [
        ([], '"text_input" must not be an empty list'),
        (["a", "b"], '"text_input[0]" must be an object with a type, got a string'),
        ([text_part("a"), "b"], '"text_input[1]" must be an object with a type, got a string'),
        ([[]], '"text_input[0]" must be an object with a type, got an array'),
        ([None], '"text_input[0]" must be an object with a type, got null'),
        ([1], '"text_input[0]" must be an object with a type, got a number'),
        ([{"type": "text"}], '"text_input[0]" must have a non-empty string text'),
        ([text_part("")], '"text_input[0]" must have a non-empty string text'),
        ([text_part(None)], '"text_input[0]" must have a non-empty string text'),
        ([text_part(1)], '"text_input[0]" must have a non-empty string text'),
        ([text_part(["a"])], '"text_input[0]" must have a non-empty string text'),
    ],
    ids=json.dumps,
)
def test_bad_parts(parts: list[Any], text: str) -> None:
    with pytest.raises(InvalidInput) as failure:
        envelope_of(body(text_input=parts))
    assert failure.value.message == text


@pytest.mark.parametrize("kind", [None, "", "Text", "image", 1, ["text"], {"text": 1}, "t" * 999])
def test_unknown_types_of_parts(kind: Any) -> None:
    with pytest.raises(InvalidInput, match=r'^"text_input\[0\]" must have one of the types text, '):
        envelope_of(body(text_input=[{"type": kind, "text": "a"}]))


@pytest.mark.parametrize("kind", ["image_url", "video_url", "audio_url"])
def test_media_for_a_text_model(kind: str) -> None:
    parts = [text_part("look"), {"type": kind, kind: "/data/multimodal_inputs/a.png"}]
    envelope = envelope_of(body(text_input=parts))
    with pytest.raises(InvalidInput, match=rf'"text_input\[1\]" holds {kind.partition("_")[0]}'):
        check_modalities(envelope.parts, {})
