"""infer: KServe tensors of token ids, and everything that is none (contract §7)."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from translators.contract import DOCUMENTED
from translators.errors import BadRequest, GenerationError, InvalidInput
from translators.request import Parameters, read_parameters
from translators.tokens import Finish, FinishReason, Token
from translators.triton_infer import InferRequest, TritonInfer, read_infer, split_body

GOLDEN = Path(__file__).resolve().parent.parent / "golden"
VOCAB = 100
LIMIT = 8


def tensor(**changed: Any) -> dict[str, Any]:
    given = {"name": "input0", "shape": [1, 3], "datatype": "UINT32", "data": [0, 1, 99]} | changed
    return {key: value for key, value in given.items() if value is not ...}


def body(**changed: Any) -> dict[str, Any]:
    given = {"inputs": [tensor()], "outputs": [{"name": "output0"}]} | changed
    return {key: value for key, value in given.items() if value is not ...}


def read(document: dict[str, Any], binary: bytes = b"", *, dialect: bool = True) -> InferRequest:
    return read_infer(document, binary, vocab_size=VOCAB, prompt_limit=LIMIT, dialect=dialect)


def parameters(document: dict[str, Any], *, dialect: bool = True) -> Parameters:
    return read_parameters(read(document, dialect=dialect).envelope, DOCUMENTED)


@pytest.mark.parametrize("shape", [[3], [1, 3]])
def test_both_shapes_are_one_prompt(shape: list[int]) -> None:
    request = read(body(inputs=[tensor(shape=shape)], id="a1"))
    assert request.prompt == [0, 1, 99]
    assert request.output_name == "output0"
    assert request.envelope.client_id == "a1"


def test_the_names_of_huaweis_sdk_are_those_of_the_metadata() -> None:
    request = read(body(inputs=[tensor(name="INPUT0")], outputs=[{"name": "OUTPUT0"}]))
    assert request.output_name == "OUTPUT0"


REFUSED = {
    "no inputs": body(inputs=...),
    "inputs null": body(inputs=None),
    "inputs an object": body(inputs=tensor()),
    "inputs empty": body(inputs=[]),
    "two inputs": body(inputs=[tensor(), tensor()]),
    "an input that is a number": body(inputs=[1]),
    "no name": body(inputs=[tensor(name=...)]),
    "a number as a name": body(inputs=[tensor(name=1)]),
    "an empty name": body(inputs=[tensor(name="")]),
    "an unknown tensor": body(inputs=[tensor(name="attention_mask")]),
    "no datatype": body(inputs=[tensor(datatype=...)]),
    "another datatype": body(inputs=[tensor(datatype="INT64")]),
    "a datatype in lower case": body(inputs=[tensor(datatype="uint32")]),
    "no shape": body(inputs=[tensor(shape=...)]),
    "a shape that is a number": body(inputs=[tensor(shape=3)]),
    "an empty shape": body(inputs=[tensor(shape=[])]),
    "three dimensions": body(inputs=[tensor(shape=[1, 1, 3])]),
    "a batch of two": body(inputs=[tensor(shape=[2, 3])]),
    "a column": body(inputs=[tensor(shape=[3, 1])]),
    "a shape that is too short": body(inputs=[tensor(shape=[1, 2])]),
    "a shape that is too long": body(inputs=[tensor(shape=[1, 4])]),
    "a negative shape": body(inputs=[tensor(shape=[-1])]),
    "a float in the shape": body(inputs=[tensor(shape=[1, 3.0])]),
    "a boolean in the shape": body(inputs=[tensor(shape=[True, 3])]),
    "no data": body(inputs=[tensor(data=...)]),
    "data that is a string": body(inputs=[tensor(data="0 1 99")]),
    "nested data": body(inputs=[tensor(data=[[0, 1, 99]])]),
    "empty data": body(inputs=[tensor(data=[], shape=[1, 0])]),
    "the first id beyond the vocabulary": body(inputs=[tensor(data=[0, 1, VOCAB])]),
    "an id beyond 32 bits": body(inputs=[tensor(data=[0, 1, 2**32])]),
    "a negative id": body(inputs=[tensor(data=[0, -1, 1])]),
    "a float id": body(inputs=[tensor(data=[0, 1.0, 1])]),
    "a boolean id": body(inputs=[tensor(data=[0, True, 1])]),
    "a null id": body(inputs=[tensor(data=[0, None, 1])]),
    "no outputs": body(outputs=...),
    "outputs empty": body(outputs=[]),
    "two outputs": body(outputs=[{"name": "output0"}] * 2),
    "an output without a name": body(outputs=[{}]),
    "an unknown output": body(outputs=[{"name": "logits"}]),
    "an output that is a string": body(outputs=["output0"]),
    "a bad id": body(id="a b"),
}


@pytest.mark.parametrize("document", REFUSED.values(), ids=REFUSED.keys())
def test_what_is_no_such_tensor_is_refused_with_the_reason(document: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput) as refusal:
        read(document)
    inputs_are_fine = json.dumps(document.get("inputs")) == json.dumps([tensor()])
    field = "outputs" if inputs_are_fine else "inputs"
    assert ("id" if document.get("id") else field) in refusal.value.message


def test_the_reason_says_which_id_and_what_is_allowed() -> None:
    with pytest.raises(InvalidInput, match=r'"inputs\[0\].data\[2\]" .* 0 to 99, got 100'):
        read(body(inputs=[tensor(data=[0, 1, 100])]))


def test_a_prompt_up_to_the_limit_and_one_token_more() -> None:
    fits = [tensor(data=[1] * LIMIT, shape=[LIMIT])]
    assert len(read(body(inputs=fits)).prompt) == LIMIT
    with pytest.raises(GenerationError, match="9 prompt tokens, at most 8"):
        read(body(inputs=[tensor(data=[1] * (LIMIT + 1), shape=[LIMIT + 1])]))


def test_parameters_stand_in_the_input_or_in_the_body() -> None:
    inner = body(inputs=[tensor(parameters={"max_new_tokens": 7, "seed": None})])
    outer = body(parameters={"max_new_tokens": 8, "seed": 3})
    both = {**inner, "parameters": outer["parameters"]}
    assert parameters(inner).max_new_tokens == 7
    assert parameters(outer).max_new_tokens == 8
    assert (parameters(both).max_new_tokens, parameters(both).seed) == (7, 3)
    assert parameters(body()).max_new_tokens == 20


def test_parameters_are_checked_as_everywhere() -> None:
    for where in (
        body(parameters={"top_p": 2.0}),
        body(inputs=[tensor(parameters={"top_p": 2.0})]),
        body(parameters=[]),
        body(inputs=[tensor(parameters="x")]),
    ):
        with pytest.raises(InvalidInput, match="parameter"):
            parameters(where)


def test_max_tokens_is_understood_when_the_dialect_is_on() -> None:
    document = body(parameters={"max_tokens": 7})
    assert parameters(document).max_new_tokens == 7
    assert parameters(document, dialect=False).max_new_tokens == 20


def packed(*ids: int) -> bytes:
    return struct.pack(f"<{len(ids)}I", *ids)


def binary_tensor(size: Any = 12, **changed: Any) -> dict[str, Any]:
    return tensor(data=..., parameters={"binary_data_size": size}, **changed)


def test_binary_data_behind_the_json_is_the_prompt() -> None:
    request = read(body(inputs=[binary_tensor()]), packed(0, 1, 99))
    assert request.prompt == [0, 1, 99]


@pytest.mark.parametrize(
    ("inputs", "binary"),
    [
        (binary_tensor(), packed(0, 1, VOCAB)),
        (binary_tensor(), packed(0, 1)),
        (binary_tensor(size=11), packed(0, 1, 99)),
        (binary_tensor(size=13), packed(0, 1, 99) + b"\0"),
        (binary_tensor(size=None), packed(0, 1, 99)),
        (binary_tensor(shape=[1, 2]), packed(0, 1, 99)),
        (tensor(), packed(0, 1, 99)),
        (tensor(data=..., parameters=3), packed(0, 1, 99)),
        (binary_tensor(), b""),
    ],
)
def test_binary_data_that_does_not_fit_is_refused(inputs: dict[str, Any], binary: bytes) -> None:
    with pytest.raises(InvalidInput, match=r"inputs\[0\]"):
        read(body(inputs=[inputs]), binary)


def test_the_body_is_split_where_the_header_says() -> None:
    assert split_body(b"{}", None) == (b"{}", b"")
    assert split_body(b"{}abcd", "2") == (b"{}", b"abcd")
    assert split_body(b"{}", "2") == (b"{}", b"")
    for wrong in ("3", "-1", "", "2.0", "\u0662", "x"):
        with pytest.raises(BadRequest):
            split_body(b"{}", wrong)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(["name", "shape", "datatype", "data", "parameters"]),
                inner,
                max_size=5,
            )
        ),
        max_leaves=12,
    ),
    st.binary(max_size=9),
)
def test_nothing_but_a_prompt_or_a_refusal_comes_of_any_input(inputs: Any, binary: bytes) -> None:
    try:
        request = read(body(inputs=inputs), binary)
        read_parameters(request.envelope, DOCUMENTED)
    except (InvalidInput, GenerationError):
        return
    assert all(0 <= token_id < VOCAB for token_id in request.prompt)


def test_the_answer_byte_by_byte() -> None:
    translator = TritonInfer(request_id="a123", output_name="output0")
    for token_id in (3681, 297):
        translator.add(Token(token_id, "x", 0.0, 0.0, 1))
        assert not translator.ended
    translator.add(Token(2, "", 0.0, 0.0, 1, Finish(FinishReason.END)))
    assert translator.ended
    assert translator.generated == 3
    assert translator.body() == (GOLDEN / "infer.json").read_bytes()


def test_a_stopped_answer_may_be_empty() -> None:
    translator = TritonInfer(request_id="a", output_name="OUTPUT0")
    translator.stopped()
    assert translator.ended
    assert translator.body() == (
        b'{"id":"a","outputs":[{"name":"OUTPUT0","shape":[1,0],"datatype":"UINT32","data":[]}]}'
    )
