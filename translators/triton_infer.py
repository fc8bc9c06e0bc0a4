"""infer: token ids in, token ids out, as KServe tensors (contract §7).

One input and one output tensor, both of unsigned 32-bit token ids. Their names
are those of the model's metadata, in any case: Huawei's SDK writes INPUT0. The
input may come as binary data behind the JSON, which is what Triton's own client
does unless told otherwise; the output is always JSON, which it reads as well.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import orjson

from translators.body import json_type, shown
from translators.errors import BadRequest, GenerationError, InvalidInput
from translators.request import Envelope, read_id
from translators.tokens import Token

INPUT_NAME: Final = "input0"
OUTPUT_NAME: Final = "output0"
DATATYPE: Final = "UINT32"
JSON_LENGTH_HEADER: Final = "Inference-Header-Content-Length"
"""Says how much of the body is JSON, when binary data follows."""
_BYTES_PER_ID: Final = 4


@dataclass(frozen=True, slots=True)
class InferRequest:
    """The checked part of an infer request that is particular to it."""

    envelope: Envelope
    """For `read_parameters`; its text is empty."""
    prompt: list[int]
    output_name: str
    """As the client spelled it."""


def split_body(body: bytes, json_length: str | None) -> tuple[bytes, bytes]:
    """The JSON and the binary data behind it, by the value of `JSON_LENGTH_HEADER`."""
    if json_length is None:
        return body, b""
    if not (json_length.isascii() and json_length.isdigit()) or int(json_length) > len(body):
        raise BadRequest(f"{JSON_LENGTH_HEADER} must be a number of bytes within the body")
    return body[: int(json_length)], body[int(json_length) :]


def read_infer(
    document: Mapping[str, Any],
    binary: bytes,
    *,
    vocab_size: int,
    prompt_limit: int,
    dialect: bool,
) -> InferRequest:
    """Check id, input and output tensor, in this order; the parameters come later.

    `binary` is what followed the JSON. Raises InvalidInput with the reason, and
    GenerationError for a prompt of more than `prompt_limit` tokens.
    """
    client_id = read_id(document)
    tensor = _only(document, "inputs")
    _check_name("inputs", tensor, INPUT_NAME)
    _check_datatype(tensor)
    prompt = _token_ids(tensor, binary, vocab_size, prompt_limit)
    output = _only(document, "outputs")
    return InferRequest(
        envelope=Envelope(
            client_id=client_id,
            text="",
            parameters=_parameters(document, tensor),
            # `max_tokens` is understood under `parameters`; nothing else of the
            # dialect has a place in this body.
            top_level={} if dialect else None,
        ),
        prompt=prompt,
        output_name=_check_name("outputs", output, OUTPUT_NAME),
    )


def _only(document: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    tensors = document.get(key)
    if not isinstance(tensors, list):
        got = "nothing" if tensors is None else json_type(tensors)
        raise InvalidInput(f'"{key}" must be a list with one tensor, got {got}')
    if len(tensors) != 1:
        raise InvalidInput(f'"{key}" must hold exactly one tensor, got {len(tensors)}')
    if not isinstance(tensors[0], dict):
        raise InvalidInput(f'"{key}[0]" must be an object, got {json_type(tensors[0])}')
    return tensors[0]


def _check_name(key: str, tensor: Mapping[str, Any], known: str) -> str:
    name = tensor.get("name")
    if not isinstance(name, str) or name.lower() != known:
        raise InvalidInput(
            f'"{key}[0].name": there is one tensor here, "{known}", got {shown(name)}'
        )
    return name


def _check_datatype(tensor: Mapping[str, Any]) -> None:
    datatype = tensor.get("datatype")
    if datatype != DATATYPE:
        raise InvalidInput(f'"inputs[0].datatype" must be "{DATATYPE}", got {shown(datatype)}')


def _token_ids(
    tensor: Mapping[str, Any], binary: bytes, vocab_size: int, prompt_limit: int
) -> list[int]:
    data = _binary_data(tensor, binary) if binary else tensor.get("data")
    if not isinstance(data, list):
        got = "nothing" if data is None else json_type(data)
        raise InvalidInput(f'"inputs[0].data" must be a flat list of token ids, got {got}')
    _check_shape(tensor.get("shape"), len(data))
    if not data:
        raise InvalidInput('"inputs[0].data" must hold at least one token id')
    if len(data) > prompt_limit:
        raise GenerationError(
            f'"inputs[0].data" holds {len(data)} prompt tokens, at most {prompt_limit} fit'
        )
    for index, token_id in enumerate(data):
        # bool is a subclass of int, and no token id.
        if type(token_id) is not int or not 0 <= token_id < vocab_size:
            raise InvalidInput(
                f'"inputs[0].data[{index}]" must be a token id from 0 to {vocab_size - 1}, '
                f"got {shown(token_id)}"
            )
    return data


def _binary_data(tensor: Mapping[str, Any], binary: bytes) -> list[int]:
    parameters = tensor.get("parameters")
    said = parameters.get("binary_data_size") if isinstance(parameters, dict) else None
    if said != len(binary) or len(binary) % _BYTES_PER_ID or tensor.get("data") is not None:
        raise InvalidInput(
            f'"inputs[0]" must have no "data" and the parameter "binary_data_size" '
            f"{len(binary)}, a multiple of {_BYTES_PER_ID}, as this much follows the JSON"
        )
    return list(struct.unpack(f"<{len(binary) // _BYTES_PER_ID}I", binary))


def _check_shape(shape: Any, count: int) -> None:
    is_shape = isinstance(shape, list) and all(type(size) is int for size in shape)
    if not is_shape or shape not in ([count], [1, count]):
        raise InvalidInput(
            f'"inputs[0].shape" must be [{count}] or [1,{count}], as "data" holds {count} '
            f"token ids, got {shown(shape)}"
        )


def _parameters(document: Mapping[str, Any], tensor: Mapping[str, Any]) -> Any:
    """`parameters` of the input and of the body as one; the input's win.

    What is no object is handed on as it is, and refused when its turn comes.
    """
    inner, outer = tensor.get("parameters"), document.get("parameters")
    for value in (inner, outer):
        if value is not None and not isinstance(value, dict):
            return value
    own = {key: value for key, value in (inner or {}).items() if value is not None}
    return {**(outer or {}), **own}


class TritonInfer:
    """The answer to one request: `add` for each token until `ended`, then `body`."""

    def __init__(self, *, request_id: str, output_name: str) -> None:
        self._request_id = request_id
        self._output_name = output_name
        self._ids: list[int] = []
        self.ended = False

    @property
    def generated(self) -> int:
        """Tokens so far, the end token included."""
        return len(self._ids)

    def add(self, token: Token) -> None:
        """One token. Must not be called once `ended` is true."""
        self._ids.append(token.id)
        self.ended = token.finish is not None

    def stopped(self) -> None:
        """stopInfer ended the request: the answer is what there is."""
        self.ended = True

    def body(self) -> bytes:
        """The JSON object."""
        return orjson.dumps({"id": self._request_id, "outputs": [self._output()]})

    def _output(self) -> dict[str, Any]:
        return {
            "name": self._output_name,
            "shape": [1, len(self._ids)],
            "datatype": DATATYPE,
            "data": self._ids,
        }
