"""The wire formats as OpenAPI 3.1: requests from the tables, answers from the translators.

Whatever the validator reads, these schemas are made of; whatever an answer
looks like, a translator was asked for it. Nothing is described twice.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from enum import Enum
from typing import Any, Final, NamedTuple

import orjson

from translators import metadata
from translators.contract import (
    DIALECT,
    ID_PATTERN,
    INT32_MAX,
    MAX_WORD_LENGTH,
    MAX_WORDS,
    MODEL_PATTERN,
    Contract,
    Kind,
    Range,
)
from translators.errors import (
    BadRequest,
    BodyTooLarge,
    Forbidden,
    GatewayError,
    GenerationError,
    IncompleteGeneration,
    InvalidInput,
    NotFound,
    Overloaded,
    ServiceUnavailable,
    TooManyRequests,
    Unauthorized,
    UnsupportedEncoding,
)
from translators.json_schema import Schema, nullable, of_answers, of_kind, of_parameters
from translators.media_formats import MAX_ITEMS, RULES
from translators.tgi import Asked, TgiAnswer, TgiStream, as_tgi
from translators.tgi_request import UNSUPPORTED, tgi_parameters
from translators.tokens import Alternative, Finish, FinishReason, Token
from translators.triton_generate import TritonGenerate
from translators.triton_infer import DATATYPE, INPUT_NAME, OUTPUT_NAME, TritonInfer
from translators.triton_stream import FrameStyle, TritonStream

VERSION: Final = "3.1.0"
JSON: Final = "application/json"
EVENTS: Final = "text/event-stream"
TEXT: Final = "text/plain"


class Answer(NamedTuple):
    """What a success looks like; several when the request chooses."""

    media_type: str | None
    schema: str | None = None
    """The component; of a stream, what each event holds."""


class Failures(Enum):
    """Which failures an operation has, beside those of every one."""

    GENERATION = (
        NotFound,
        BodyTooLarge,
        UnsupportedEncoding,
        InvalidInput,
        GenerationError,
        IncompleteGeneration,
        ServiceUnavailable,
    )
    TGI = (
        BodyTooLarge,
        UnsupportedEncoding,
        InvalidInput,
        GenerationError,
        Overloaded,
        IncompleteGeneration,
        ServiceUnavailable,
    )
    STOP = (
        NotFound,
        BodyTooLarge,
        UnsupportedEncoding,
        InvalidInput,
        IncompleteGeneration,
        ServiceUnavailable,
    )
    MODEL = (NotFound, ServiceUnavailable)
    SERVER = (ServiceUnavailable,)
    LOOKUP = (NotFound,)
    NONE = ()


class Operation(NamedTuple):
    """One operation. `path` is written as OpenAPI does, `request` is a component."""

    method: str
    path: str
    name: str
    summary: str
    tag: str
    needs_key: bool
    """Whether API keys guard it, where there are any."""
    deprecated: bool
    request: str | None
    answers: tuple[Answer, ...]
    failures: Failures
    is_probe: bool = False
    """Whether "not ready" is one of its answers."""


_PARAMETERS: Final[Schema] = {"do_sample": True, "max_new_tokens": 5, "seed": 123}
EXAMPLES: Final[dict[str, Schema]] = {
    "TritonRequest": {
        "id": "a123",
        "text_input": "My name is Olivier and I",
        "parameters": {"details": True, **_PARAMETERS},
    },
    "InferRequest": {
        "id": "a123",
        "inputs": [
            {"name": INPUT_NAME, "shape": [1, 3], "datatype": DATATYPE, "data": [396, 319, 13]}
        ],
        "outputs": [{"name": OUTPUT_NAME}],
        "parameters": _PARAMETERS,
    },
    "StopRequest": {"id": "a123"},
    "TgiRequest": {"inputs": "My name is Olivier and I", "parameters": _PARAMETERS},
    "TgiEitherRequest": {
        "inputs": "My name is Olivier and I",
        "parameters": _PARAMETERS,
        "stream": True,
    },
}
"""A request of each kind that works as it stands."""

_EVERYWHERE: Final = (BadRequest,)
_KEYS: Final = (Unauthorized, Forbidden, TooManyRequests)
_KEY_SCHEMES: Final[Schema] = {
    "bearer": {"type": "http", "scheme": "bearer"},
    "header": {"type": "apiKey", "in": "header", "name": "X-Api-Key"},
}
_REQUEST_UUID: Final[Schema] = {
    "description": "The id of this answer.",
    "schema": {"type": "string", "pattern": "^[0-9a-f]{32}$"},
}
_PATH_PARAMETERS: Final[dict[str, Schema]] = {
    "model": {
        "description": "A served model.",
        "schema": {"type": "string", "pattern": f"^{MODEL_PATTERN}$"},
    },
    "seconds": {
        "description": "How long to wait for the token.",
        "schema": {"type": "integer", "minimum": 1, "maximum": 600},
    },
}
_IN_PATH: Final = re.compile(r"{(\w+)}")
_STRING: Final[Schema] = {"type": "string"}
_ID: Final[Schema] = {"type": "string", "pattern": f"^{ID_PATTERN}$"}


def document(
    operations: Iterable[Operation],
    contract: Contract,
    *,
    title: str,
    version: str,
    models: Sequence[str] = (),
) -> Schema:
    """The whole description; `models` are the served ones, where they are known."""
    paths: dict[str, Schema] = {}
    for operation in operations:
        methods = paths.setdefault(operation.path, {})
        methods[operation.method.lower()] = _operation(operation, models)
    return {
        "openapi": VERSION,
        "info": {
            "title": title,
            "version": version,
            "description": f"MindIE's wire contract `{contract.name}` on vLLM.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": paths,
        "components": {
            "schemas": schemas(contract),
            "responses": _failures(),
            "headers": {"RequestUUID": _REQUEST_UUID},
            "securitySchemes": _KEY_SCHEMES,
        },
    }


def _operation(operation: Operation, models: Sequence[str]) -> Schema:
    described: Schema = {
        "operationId": operation.name,
        "summary": operation.summary,
        "tags": [operation.tag],
        "parameters": [_path_parameter(name, models) for name in _IN_PATH.findall(operation.path)],
        "responses": _responses(operation),
        "deprecated": operation.deprecated,
    }
    if operation.request is not None:
        example = EXAMPLES[operation.request]
        content = {JSON: {"schema": _ref(operation.request), "example": example}}
        described["requestBody"] = {"required": True, "content": content}
    if operation.needs_key:
        # Keys are a matter of the set-up: without any, everything is open.
        described["security"] = [{}, *({name: []} for name in _KEY_SCHEMES)]
    return described


def _path_parameter(name: str, models: Sequence[str]) -> Schema:
    parameter = {"name": name, "in": "path", "required": True, **_PATH_PARAMETERS[name]}
    served = name == "model" and models
    return parameter | {"schema": {"enum": list(models)}} if served else parameter


def _responses(operation: Operation) -> Schema:
    responses = {"200": _success(operation)}
    tgis = operation.failures is Failures.TGI
    kinds = (*_EVERYWHERE, *operation.failures.value, *(_KEYS if operation.needs_key else ()))
    for kind in kinds:
        status = as_tgi(kind("x")).status if tgis else kind.status
        responses.setdefault(str(status), _ref(_failure_name(kind, tgis=tgis), "responses"))
    if operation.is_probe:
        responses["503"] = _ref("NotReady", "responses")
    return dict(sorted(responses.items()))


def _failure_name(kind: type[GatewayError], *, tgis: bool) -> str:
    # Only this one looks different: MindIE gives it another shape.
    return f"Tgi{kind.__name__}" if tgis and kind is BodyTooLarge else kind.__name__


def _failures() -> dict[str, Schema]:
    """The failures that operations refer to, by name."""
    kinds = {kind for each in Failures for kind in each.value} | {*_EVERYWHERE, *_KEYS}
    named = {kind.__name__: _failure(kind, kind("x")) for kind in kinds}
    named["TgiBodyTooLarge"] = _failure(BodyTooLarge, as_tgi(BodyTooLarge("x")))
    named["NotReady"] = _response("Not ready, and why.", {JSON: {"schema": _ref("Message")}})
    return dict(sorted(named.items()))


def _success(operation: Operation) -> Schema:
    content = {
        answer.media_type: _content(answer)
        for answer in operation.answers
        if answer.media_type is not None
    }
    return _response(operation.summary, content)


def _content(answer: Answer) -> Schema:
    if answer.schema is None:
        return {"schema": _STRING}
    return {"schema": _event(answer.schema) if answer.media_type == EVENTS else _ref(answer.schema)}


def _event(name: str) -> Schema:
    """One server-sent event of a stream of them: its data is JSON."""
    data = {"type": "string", "contentMediaType": JSON, "contentSchema": _ref(name)}
    return {
        "type": "object",
        "description": f"One event of the stream: `data:`, a {name}, an empty line.",
        "properties": {"data": data},
        "required": ["data"],
    }


def _failure(kind: type[GatewayError], example: GatewayError) -> Schema:
    schema = "Message" if "message" in orjson.loads(example.body()) else "Error"
    text = (kind.__doc__ or "").splitlines()[0]
    return _response(text, {JSON: {"schema": _ref(schema)}})


def _response(description: str, content: Schema) -> Schema:
    response: Schema = {
        "description": description,
        "headers": {"RequestUUID": _ref("RequestUUID", "headers")},
    }
    return response | {"content": content} if content else response


def _ref(name: str, kind: str = "schemas") -> Schema:
    return {"$ref": f"#/components/{kind}/{name}"}


def schemas(contract: Contract) -> dict[str, Schema]:
    """All components by name."""
    return {
        "Error": of_answers({"error": "x", "error_type": "x"}),
        "Message": of_answers({"message": "x"}),
        "Healthy": of_answers({"status": "healthy"}),
        **_triton_requests(contract),
        "TritonFrame": of_answers(*_triton_frames(contract)),
        "TritonAnswer": of_answers(*_triton_answers(contract)),
        "InferRequest": _infer_request(contract),
        "InferAnswer": of_answers(*_infer_answers()),
        "StopRequest": {"type": "object", "properties": {"id": _ID}, "required": ["id"]},
        "StopAnswer": {"type": "object", "description": "The request, as it came."},
        "TgiParameters": _tgi_parameters(contract),
        "TgiRequest": _tgi_request({}),
        "TgiEitherRequest": _tgi_request({"stream": nullable({"type": "boolean"})}),
        "TgiFrame": of_answers(*_tgi_frames()),
        "TgiAnswer": of_answers(*_tgi_answers()),
        "TgiAnswers": {"type": "array", "items": _ref("TgiAnswer"), "minItems": 1, "maxItems": 1},
        "OpenApi": {"type": "object", "required": ["openapi", "paths"]},
        **_metadata(),
    }


def _triton_requests(contract: Contract) -> dict[str, Schema]:
    """`text_input` as a string, as parts, or in the dialect as a list with one string."""
    text: Schema = {"type": "string", "minLength": 1, "description": "The prompt."}
    parts: Schema = {
        "type": "array",
        "minItems": 1,
        "items": {"anyOf": [_part("text"), *(_part(rule.field) for rule in RULES)]},
        "description": f"Text and media in their order, at most {MAX_ITEMS} media.",
    }
    one: Schema = {"type": "array", "items": text, "minItems": 1, "maxItems": 1}
    properties: Schema = {
        "id": nullable(_ID) | {"description": "Echoed; absent: one is made up."},
        "text_input": {"anyOf": [text, parts, one]},
        "parameters": {"anyOf": [_ref("TritonParameters"), {"type": "null"}]},
    }
    return {
        "TritonParameters": of_parameters(contract.parameters),
        "TritonRequest": {
            "type": "object",
            "properties": {**properties, **_dialect(contract)},
            "required": ["text_input"],
        },
    }


def _part(kind: str) -> Schema:
    url: Schema = {"type": "object", "properties": {"url": _STRING}, "required": ["url"]}
    value = {"type": "string", "minLength": 1} if kind == "text" else {"anyOf": [_STRING, url]}
    return {
        "type": "object",
        "properties": {"type": {"const": kind}, kind: value},
        "required": ["type", kind],
    }


def _dialect(contract: Contract) -> Schema:
    """The top-level fields: typed like their twins, with ranges of their own."""
    described: Schema = {}
    for row in DIALECT:
        if row.parameter is not None:
            schema = nullable(of_kind(contract.parameter(row.parameter).kind, row.range))
        elif row.name == "accumulate_tokens":
            schema = nullable(of_kind(Kind.BOOL, None))
        else:
            schema = _words()
        described[row.name] = schema | {"description": row.meaning}
    return described


def _words() -> Schema:
    word: Schema = {"type": "string", "maxLength": MAX_WORD_LENGTH}
    words = {"type": "array", "items": word, "maxItems": MAX_WORDS}
    return {"anyOf": [word, words, {"type": "null"}]}


def _infer_request(contract: Contract) -> Schema:
    parameters = {"anyOf": [_ref("TritonParameters"), {"type": "null"}]}
    ids: Schema = {"type": "array", "items": of_kind(Kind.INT, Range(0, INT32_MAX)), "minItems": 1}
    size: Schema = {"type": "integer", "minimum": 1}
    tensor: Schema = {
        "type": "object",
        "properties": {
            "name": {"enum": [INPUT_NAME, INPUT_NAME.upper()]},
            "shape": {"type": "array", "items": size, "minItems": 1, "maxItems": 2},
            "datatype": {"const": DATATYPE},
            "data": ids | {"description": "Token ids, as many as the shape says."},
            "parameters": parameters,
        },
        "required": ["name", "shape", "datatype"],
    }
    output: Schema = {
        "type": "object",
        "properties": {"name": {"enum": [OUTPUT_NAME, OUTPUT_NAME.upper()]}},
        "required": ["name"],
    }
    return {
        "type": "object",
        "properties": {
            "id": nullable(_ID),
            "inputs": {"type": "array", "items": tensor, "minItems": 1, "maxItems": 1},
            "outputs": {"type": "array", "items": output, "minItems": 1, "maxItems": 1},
            "parameters": parameters,
        },
        "required": ["inputs", "outputs"],
    }


def _tgi_parameters(contract: Contract) -> Schema:
    described = of_parameters(tgi_parameters(contract))
    described["properties"]["stop"] = _words() | {"description": "They end the text."}
    for name in UNSUPPORTED:
        described["properties"][name] = {"type": "null", "description": "Not supported."}
    return described


def _tgi_request(more: Schema) -> Schema:
    return {
        "type": "object",
        "properties": {
            "inputs": {"type": "string", "minLength": 1, "description": "The prompt."},
            "parameters": {"anyOf": [_ref("TgiParameters"), {"type": "null"}]},
            **more,
        },
        "required": ["inputs"],
    }


# One token of every kind, for the translators to show what becomes of it.
_TOP: Final = (Alternative(1, "a", -0.5),)
_FIRST: Final = Token(1, "a", 0.5, 0.5, 1, logprob=-0.5, top=_TOP)
_NEXT: Final = Token(2, "b", 0.25, 0.0, 1)
_LAST: Final = Token(3, "c", 0.25, 0.0, 1, Finish(FinishReason.END))


def _triton_frames(contract: Contract) -> list[Any]:
    frames: list[bytes] = []
    for details in (False, True):
        stream = TritonStream(
            request_id="a",
            model_name="m",
            details=details,
            max_tokens=9,
            contract=contract,
            style=FrameStyle(),
        )
        frames += [*map(stream.frame, (_FIRST, _NEXT, _LAST)), stream.stopped()]
        if not contract.raw_failure_text:
            frames.append(stream.failed(IncompleteGeneration("x")))
    return [orjson.loads(frame.removeprefix(b"data:")) for frame in frames]


def _triton_answers(contract: Contract) -> list[Any]:
    answers = []
    for details in (False, True):
        answer = TritonGenerate(
            request_id="a", model_name="m", details=details, max_tokens=9, contract=contract
        )
        answers.append(_whole(answer))
    return answers


def _infer_answers() -> list[Any]:
    return [_whole(TritonInfer(request_id="a", output_name=OUTPUT_NAME))]


def _tgi_frames() -> list[Any]:
    frames: list[bytes] = []
    for seed in (None, 1):
        stream = TgiStream(Asked(details=True, seed=seed))
        frames += [*map(stream.frame, (_FIRST, _NEXT, _LAST)), stream.stopped()]
        frames.append(TgiStream(Asked()).frame(_LAST))
        frames.append(stream.failed(IncompleteGeneration("x")))
    return [orjson.loads(frame.removeprefix(b"data:")) for frame in frames]


def _tgi_answers() -> list[Any]:
    plain = _FIRST._replace(top=())
    return [
        _whole(TgiAnswer(Asked())),
        _whole(TgiAnswer(Asked(details=True)), plain),
        _whole(TgiAnswer(Asked(details=True, seed=1), prefill=[(1, "a")])),
    ]


def _whole(answer: TritonGenerate | TritonInfer | TgiAnswer, first: Token = _FIRST) -> Any:
    for token in (first, _NEXT, _LAST):
        answer.add(token)
    return orjson.loads(answer.body())


def _metadata() -> dict[str, Schema]:
    """Each from an engine that tells everything, and from one that tells nothing."""
    return {
        "ServerMetadata": of_answers(
            *(
                metadata.server_metadata(
                    "n", "v", max_iter_times=1, max_prefill_batch_size=1, max_prefill_tokens=tokens
                )
                for tokens in (1, None)
            )
        ),
        "ModelMetadata": of_answers(metadata.model_metadata("m", device_type=None)),
        "ModelConfig": of_answers(
            *(
                metadata.model_config(
                    "m",
                    max_seq_len=1,
                    kv_cache_bytes=size,
                    cpu_kv_cache_bytes=size or 0,
                    world_size=size,
                    model_path=path,
                )
                for size, path in ((1, "m"), (None, None))
            )
        ),
        "SlotCount": of_answers(
            *(
                metadata.slot_count(
                    max_num_seqs=1, requests=0, kv_blocks=size, block_size=size, kv_cache_usage=0.0
                )
                for size in (1, None)
            )
        ),
        "TgiInfo": of_answers(
            *(
                metadata.tgi_info(
                    ["m"],
                    "v",
                    max_num_seqs=1,
                    max_num_batched_tokens=tokens,
                    max_input_tokens=1,
                    max_total_tokens=1,
                    device_type=text,
                    dtype=text,
                )
                for tokens, text in ((1, "x"), (None, None))
            )
        ),
        # The engine's own list, where it has one, holds more.
        "Models": _open(
            of_answers(metadata.openai_models(["m"], created=1, owner="o", max_model_len=1))
        ),
    }


def _open(schema: Schema) -> Schema:
    """The same, with further keys wherever there are objects."""
    inner = {name: _open(value) for name, value in schema.get("properties", {}).items()}
    opened = {key: value for key, value in schema.items() if key != "additionalProperties"}
    if "items" in schema:
        opened["items"] = _open(schema["items"])
    return opened | {"properties": inner} if inner else opened
