"""One chunk of a streamed completion or chat: bytes in, what the gateway needs out.

vLLM 0.23 and 0.32 write the same shape; what only one of them has is None for
the other. Anything else than the known shape is a BadChunkError, never a crash.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, NamedTuple

import msgspec
import orjson

from proxy.engines.token_run import Logprobs
from proxy.engines.vllm_words import FAILED, reason_of
from translators.tokens import FinishReason

DONE: Final = b"[DONE]"
_MS: Final = 1_000


class BadChunkError(Exception):
    """The upstream's words make no sense."""


class Chunk(NamedTuple):
    """What one event says. `status` is set for an error object and means the rest is void."""

    ids: list[int] | None
    """The new tokens; None when the upstream does not tell."""
    text: str
    reason: FinishReason | None
    total: int | None
    """Tokens so far, when the upstream counts them."""
    queued: float | None
    """Seconds the request waited in the upstream's queue; only ever at the end."""
    status: int | None
    logprobs: list[Logprobs] | None = None
    """One for each token, when they were asked for."""


class _Choice(msgspec.Struct, gc=False):
    """One token of a completion that goes on. Other fields are not looked at."""

    text: str
    token_ids: tuple[Annotated[int, msgspec.Meta(ge=0, lt=2**31)]]
    finish_reason: None = None
    logprobs: None = None


class _PlainChunk(msgspec.Struct, gc=False):
    choices: tuple[_Choice]


_PLAIN: Final = msgspec.json.Decoder(_PlainChunk)


def plain_token(payload: bytes) -> tuple[int, str] | None:
    """Id and text of a chunk that is one token and nothing more; None for any other payload.

    Nearly all are like this, and they are read in a third of the time.
    """
    try:
        (choice,) = _PLAIN.decode(payload).choices
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    return choice.token_ids[0], choice.text


def read_chunk(payload: bytes) -> Chunk:
    """Raises BadChunkError for what is no chunk."""
    try:
        document: dict[str, Any] = orjson.loads(payload)
        choices = document.get("choices")
        if choices:
            return _tokens(choices[0], document)
        if "error" in document:
            return Chunk(None, "", None, None, None, _status(document["error"]))
        return Chunk([], "", None, _total(document), _queued(document), None)
    except (ValueError, TypeError, AttributeError, KeyError, LookupError):
        raise BadChunkError from None


def _tokens(choice: dict[str, Any], document: dict[str, Any]) -> Chunk:
    text, ids = _text(choice), choice.get("token_ids")
    if text is None:
        return Chunk([], "", None, None, None, None)
    if type(text) is not str or not (ids is None or _all_ints(ids)):
        raise TypeError
    word = choice.get("finish_reason")
    if word == FAILED:
        return Chunk(None, "", None, None, None, 500)
    total = _total(document) if ids is None else None
    told = choice.get("logprobs")
    logprobs = None if told is None else _logprobs(told)
    return Chunk(ids, text, reason_of(word), total, None, None, logprobs)


def _text(choice: dict[str, Any]) -> Any:
    """The new text, of a chat as well; None for a chat's first words, which only name a role.

    What a server's parser takes for reasoning is text like any other here.
    """
    delta = choice.get("delta")
    if delta is None:
        return choice["text"]
    text = (delta.get("reasoning") or "") + (delta.get("content") or "")
    silent = not text and choice.get("finish_reason") is None
    return None if silent and "role" in delta else text


def _all_ints(ids: Any) -> bool:
    return type(ids) is list and all(type(item) is int for item in ids)


def _logprobs(told: dict[str, Any]) -> list[Logprobs]:
    pairs = zip(told["token_logprobs"], told["top_logprobs"], strict=True)
    return [Logprobs(float(own), _ranked(top)) for own, top in pairs]


def _ranked(top: dict[str, float]) -> list[tuple[int, float]]:
    """Best first; a token is spelled `token_id:123` (return_tokens_as_token_ids)."""
    items = ((int(key.removeprefix("token_id:")), float(value)) for key, value in top.items())
    return sorted(items, key=lambda item: -item[1])


def _total(document: dict[str, Any]) -> int | None:
    usage = document.get("usage")
    return None if usage is None else int(usage["completion_tokens"])


def _queued(document: dict[str, Any]) -> float | None:
    metrics = document.get("metrics")
    if metrics is None or metrics.get("queue_time_ms") is None:
        return None
    return max(float(metrics["queue_time_ms"]) / _MS, 0.0)


def _status(error: Any) -> int:
    """The HTTP status that an error object names, else that of a server's failure."""
    code = error.get("code") if isinstance(error, dict) else None
    return code if type(code) is int else 500
