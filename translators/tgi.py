"""The answers of the TGI shape: frames, whole answers, failures.

`index`, `token`, `top_tokens`, `generated_text` and `details` stand as the TGI
protocol has them. The text of a stop sequence belongs to the generated text, as
there, so that every frame holds the text of its own token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import orjson

from translators.errors import (
    BadRequest,
    BodyTooLarge,
    GatewayError,
    GenerationError,
    IncompleteGeneration,
    InvalidInput,
    Overloaded,
    ServiceUnavailable,
    UnsupportedEncoding,
)
from translators.tokens import Alternative, FinishReason, Token
from translators.triton_stream import json_string

_WORDS: Final = {
    FinishReason.END: "eos_token",
    FinishReason.LENGTH: "length",
    FinishReason.STOPPED: "stop_sequence",
    # TGI has three words; an unknown end is the model's own.
    FinishReason.UNKNOWN: "eos_token",
}
_STOPPED: Final = "stop_sequence"


class _Malformed(BadRequest):
    error_type = "validation"


class _TooLarge(BodyTooLarge):
    error_type = "validation"

    def body(self) -> bytes:
        return GatewayError.body(self)


class _Encoded(UnsupportedEncoding):
    error_type = "validation"


class _Validation(InvalidInput):
    error_type = "validation"


class _Generation(GenerationError):
    error_type = "generation"


class _Incomplete(IncompleteGeneration):
    error_type = "incomplete_generation"


class _Unavailable(ServiceUnavailable):
    error_type = "overloaded"


class _Overloaded(Overloaded):
    status = 429
    error_type = "overloaded"


FAILURES: Final[tuple[tuple[type[GatewayError], type[GatewayError]], ...]] = (
    (BadRequest, _Malformed),
    (BodyTooLarge, _TooLarge),
    (UnsupportedEncoding, _Encoded),
    (InvalidInput, _Validation),
    (GenerationError, _Generation),
    (IncompleteGeneration, _Incomplete),
    (Overloaded, _Overloaded),
    (ServiceUnavailable, _Unavailable),
)
"""Each failure, and what it is in TGI's words. The first that fits counts."""


def as_tgi(error: GatewayError) -> GatewayError:
    """A failure with TGI's status and `error_type`."""
    for kind, theirs in FAILURES:
        if isinstance(error, kind):
            return theirs(error.message, retry_after=error.retry_after)
    return error


@dataclass(frozen=True, slots=True)
class Asked:
    """What an answer has to hold."""

    details: bool = False
    stop: tuple[str, ...] = ()
    special: frozenset[int] = frozenset()
    """Ids of tokens that are no text."""
    seed: int | None = None
    input_length: int = 0
    """Tokens of the prompt, as the engine read it."""
    opening: str = ""
    """The prompt, where the full text is wanted."""


class _Answer:
    """The growing answer: its text, and whether it has come to its end."""

    def __init__(self, asked: Asked) -> None:
        self._asked = asked
        self._texts = [asked.opening]
        self._tail = ""
        self._keep = max(map(len, asked.stop), default=1) - 1
        self.finish_reason: str | None = None
        self.generated = 0

    def push(self, token: Token) -> str:
        """The text of one more token; `finish_reason` tells whether it is the last."""
        self.generated += 1
        text = token.text
        if token.finish is not None:
            text += token.finish.tail
            self.finish_reason = _WORDS[token.finish.reason]
        self._texts.append(text)
        if self._asked.stop and self._hits_stop(text):
            self.finish_reason = _STOPPED
        return text

    def stop(self) -> None:
        """stopInfer ended the request."""
        self.finish_reason = _STOPPED

    @property
    def text(self) -> str:
        return "".join(self._texts)

    def details(self) -> dict[str, Any]:
        """What both kinds of answers say about the end."""
        return {
            "finish_reason": self.finish_reason,
            "generated_tokens": self.generated,
            "seed": self._asked.seed,
        }

    def token(self, token: Token, text: str) -> dict[str, Any]:
        return _token(token.id, text, token.logprob, self._asked.special)

    def top_tokens(self, token: Token) -> list[dict[str, Any]]:
        return [_alternative(other, self._asked.special) for other in token.top]

    def _hits_stop(self, text: str) -> bool:
        window = self._tail + text
        self._tail = window[-self._keep :] if self._keep else ""
        return any(word in window for word in self._asked.stop)


def _token(
    token_id: int, text: str, logprob: float | None, special: frozenset[int]
) -> dict[str, Any]:
    return {
        "id": token_id,
        "text": orjson.Fragment(json_string(text)),
        "logprob": logprob,
        "special": token_id in special,
    }


def _alternative(other: Alternative, special: frozenset[int]) -> dict[str, Any]:
    return _token(other.id, other.text, other.logprob, special)


class TgiStream:
    """The frames of one request (see `proxy.streaming.FrameTranslator`)."""

    fails_with_normal_end = False

    def __init__(self, asked: Asked, *, data_space: bool = False) -> None:
        self._asked = asked
        self._answer = _Answer(asked)
        self._opening = b"data: " if data_space else b"data:"
        self.ended = False

    @property
    def generated(self) -> int:
        """Tokens so far."""
        return self._answer.generated

    def frame(self, token: Token) -> bytes:
        """The frame of one token. Must not be called once `ended` is true."""
        text = self._answer.push(token)
        self.ended = self._answer.finish_reason is not None
        frame: dict[str, Any] = {
            "index": self._answer.generated,
            "token": self._answer.token(token, text),
        }
        if token.top:
            frame["top_tokens"] = self._answer.top_tokens(token)
        return self._encoded({**frame, **self._end()})

    def stopped(self) -> bytes:
        """The last frame of a request that stopInfer ended: no token of its own."""
        self._answer.stop()
        self.ended = True
        nothing = {"id": 0, "text": "", "logprob": None, "special": True}
        return self._encoded({"index": self._answer.generated, "token": nothing, **self._end()})

    def failed(self, error: GatewayError) -> bytes:
        """What a stream that broke after its first byte ends with."""
        self.ended = True
        theirs = as_tgi(error)
        return self._opening + theirs.body() + b"\n\n"

    def _end(self) -> dict[str, Any]:
        if not self.ended:
            return {"generated_text": None, "details": None}
        details = {**self._answer.details(), "input_length": self._asked.input_length}
        return {
            "generated_text": orjson.Fragment(json_string(self._answer.text)),
            "details": details if self._asked.details else None,
        }

    def _encoded(self, frame: dict[str, Any]) -> bytes:
        return self._opening + orjson.dumps(frame) + b"\n\n"


class TgiAnswer:
    """The whole answer to one request (see `proxy.streaming.AnswerTranslator`).

    `prefill` holds the prompt's tokens and their texts where they are wanted;
    `in_a_list` is the form of the route `/`.
    """

    def __init__(
        self,
        asked: Asked,
        *,
        prefill: Sequence[tuple[int, str]] = (),
        in_a_list: bool = False,
    ) -> None:
        self._asked = asked
        self._answer = _Answer(asked)
        self._prefill = prefill
        self._in_a_list = in_a_list
        self._tokens: list[dict[str, Any]] = []
        self._top_tokens: list[list[dict[str, Any]]] = []
        self.ended = False

    @property
    def generated(self) -> int:
        """Tokens so far."""
        return self._answer.generated

    def add(self, token: Token) -> None:
        """One token. Must not be called once `ended` is true."""
        text = self._answer.push(token)
        self.ended = self._answer.finish_reason is not None
        if self._asked.details:
            self._tokens.append(self._answer.token(token, text))
            if token.top:
                self._top_tokens.append(self._answer.top_tokens(token))

    def stopped(self) -> None:
        """stopInfer ended the request: the answer is what there is."""
        self._answer.stop()
        self.ended = True

    def body(self) -> bytes:
        """The JSON object, or the list with it."""
        answer: dict[str, Any] = {"generated_text": orjson.Fragment(json_string(self._answer.text))}
        if self._asked.details:
            answer["details"] = self._details()
        return orjson.dumps([answer] if self._in_a_list else answer)

    def _details(self) -> dict[str, Any]:
        details = {
            **self._answer.details(),
            "prefill": [
                {"id": token_id, "text": orjson.Fragment(json_string(text)), "logprob": None}
                for token_id, text in self._prefill
            ],
            "tokens": self._tokens,
        }
        if self._top_tokens:
            details["top_tokens"] = self._top_tokens
        return details
