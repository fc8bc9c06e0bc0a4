"""generate_stream: tokens in, MindIE's frames out (contract §4).

One object per request, three verbs: `frame` for each token, `stopped` when the
request was stopped from outside, `failed` when it broke. The constant parts of a
frame are built once; per token only text and numbers are encoded.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import msgspec
import orjson

from translators.answer_text import AnswerText
from translators.contract import Contract
from translators.errors import GatewayError
from translators.tokens import Finish, FinishReason, Token

_FINISH_WORDS: Final = {FinishReason.LENGTH: "length", FinishReason.STOPPED: "stop_sequence"}
_US: Final = 1_000_000
_US_PER_MS: Final = 1_000
_DETAILS: Final = (
    b',"details":{%b"generated_tokens":%d,"first_token_cost":null,"decode_cost":null,'
    b'"batch_size":%d,"queue_wait_time":%d},'
)
_FIRST_TIMES: Final = b'"prefill_time":%b,"decode_time":null'
_LATER_TIMES: Final = b'"prefill_time":null,"decode_time":%b'
_NO_TIMES: Final = b'"prefill_time":null,"decode_time":null'
_END: Final = b"}\n\n"
_json: Final = msgspec.json.Encoder().encode
"""The same bytes as orjson's for texts and for times, in a fraction of the time: orjson takes a
kilobyte for each, however short it comes out."""
_USUAL: Final = b"%b%b" + _DETAILS + _LATER_TIMES + _END
"""A frame with details between the first and the last: head, text, and the rest in order."""


@dataclass(frozen=True, slots=True)
class FrameStyle:
    """The operator's switches of contract §4."""

    full_text: bool = False
    """Each frame holds all text so far (MindIE's `fullTextEnabled`)."""
    data_space: bool = False
    """`data: ` instead of `data:`."""
    brace_escape: bool = True
    r"""`{` as `\u007b` in texts that hold both braces."""


def json_string(text: str) -> bytes:
    """`text` as a JSON string in raw UTF-8; U+FFFD replaces what is not text."""
    try:
        return _json(text)
    except UnicodeEncodeError:
        return _json(text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace"))


def finish_word(contract: Contract, finish: Finish, *, on_last_token: bool) -> str:
    """The contract's word for an end (contract §4 and §8)."""
    if finish.reason is FinishReason.END:
        return contract.end_on_last_token if on_last_token else "eos_token"
    return _FINISH_WORDS.get(finish.reason, contract.unknown_finish)


class TritonStream:
    """The frames of one request.

    `max_tokens` is the number of tokens this request may generate at most.
    `ended` turns true with the last frame; a stop word can bring it about while
    the engine would go on, and the caller then cancels the engine's request.
    """

    __slots__ = (
        "_answer",
        "_batch_size",
        "_contract",
        "_details",
        "_escape",
        "_full",
        "_head",
        "_max_tokens",
        "_usual",
        "ended",
        "generated",
    )

    def __init__(
        self,
        *,
        request_id: str,
        model_name: str,
        details: bool,
        max_tokens: int,
        contract: Contract,
        style: FrameStyle,
        stop_words: tuple[str, ...] = (),
    ) -> None:
        opening = b"data: {" if style.data_space else b"data:{"
        self._head = (
            opening
            + b'"id":'
            + orjson.dumps(request_id)
            + b',"model_name":'
            + orjson.dumps(model_name)
            + b',"model_version":null,"text_output":'
        )
        self._contract = contract
        self._details = details
        self._max_tokens = max_tokens
        self._escape = BraceEscape(style.brace_escape)
        self._full = bytearray() if style.full_text else None
        self._answer = AnswerText(stop_words, flush_tail=contract.flush_tail)
        self._usual = details and not style.full_text and not stop_words
        self._batch_size = 0
        self.generated = 0
        self.ended = False

    @property
    def fails_with_normal_end(self) -> bool:
        """Whether `failed` is followed by a normal end (contract §8)."""
        return self._contract.raw_failure_text

    def frame(self, token: Token) -> bytes:
        """The frame of one token. Must not be called once `ended` is true."""
        self.generated = generated = self.generated + 1
        _, text, latency, waited, self._batch_size, finish, _, _ = token
        if finish is not None or generated == 1 or not self._usual:
            return self._special_frame(token)
        # Nearly all frames are like this, and in one step they cost half.
        encoded = json_string(text)
        if b"{" in encoded:
            encoded = self._escape(encoded)
        wait = micros(waited) if waited else 0
        times = self._milliseconds(latency)
        return _USUAL % (self._head, encoded, b"", generated, self._batch_size, wait, times)

    def _special_frame(self, token: Token) -> bytes:
        text, finish = self._answer.push(token)
        self.ended = finish is not None
        head = self._head + self._text(text)
        if not self._details:
            return head + _END
        return head + self._details_of(token, finish)

    def stopped(self) -> bytes:
        """The last frame of a request that stopInfer ended: no token of its own."""
        self.ended = True
        head = self._head + self._text(self._answer.stopped())
        return head + self._closing_details() + _END

    def failed(self, error: GatewayError) -> bytes:
        """What a stream that broke after its first byte ends with (contract §5, §8).

        The `documented` contract's error frame, which the caller follows with
        a dropped connection; or the `server` contract's raw text, followed by
        a normal end.
        """
        self.ended = True
        if self._contract.raw_failure_text:
            return error.stream_text.encode()
        return (
            self._head
            + b'""'
            + self._closing_details()
            + b',"err_msg":'
            + json_string(error.message or error.error_type)
            + b',"error_type":'
            + orjson.dumps(error.error_type)
            + _END
        )

    def _text(self, text: str) -> bytes:
        encoded = json_string(text)
        if self._full is None:
            return self._escape(encoded)
        return self._escape.joined(self._full, encoded)

    def _details_of(self, token: Token, finish: Finish | None) -> bytes:
        reason = b""
        if finish is not None:
            on_last = self.generated >= self._max_tokens
            word = finish_word(self._contract, finish, on_last_token=on_last)
            reason = b'"finish_reason":%b,' % orjson.dumps(word)
        times = _FIRST_TIMES if self.generated == 1 else _LATER_TIMES
        return (_DETAILS + times + _END) % (
            reason,
            self.generated,
            token.batch_size,
            micros(token.waited),
            self._milliseconds(token.latency),
        )

    def _milliseconds(self, seconds: float) -> bytes:
        if self._contract.integer_times:
            return b"%d" % (micros(seconds) // _US_PER_MS)
        if not seconds:
            # As of all tokens that came together, but the first.
            return b"0.0"
        return _json(micros(seconds) / _US_PER_MS)

    def _closing_details(self) -> bytes:
        if not self._details:
            return b""
        reason = b'"finish_reason":"stop_sequence",'
        return (_DETAILS + _NO_TIMES) % (reason, self.generated, self._batch_size, 0)


class BraceEscape:
    r"""`{` as `\u007b` where a JSON string holds both braces (contract §4)."""

    __slots__ = ("_closed", "_enabled", "_opened")

    def __init__(self, enabled: bool) -> None:
        self._enabled = enabled
        self._opened = self._closed = False

    def __call__(self, encoded: bytes) -> bytes:
        if self._enabled and b"{" in encoded and b"}" in encoded:
            return encoded.replace(b"{", b"\\u007b")
        return encoded

    def joined(self, so_far: bytearray, encoded: bytes) -> bytes:
        """Append a JSON string to the text so far and return the whole, quoted.

        The text so far is kept escaped, so that the cost of a frame grows with
        the bytes sent and with nothing else.
        """
        both_before = self._opened and self._closed
        self._opened = self._opened or b"{" in encoded
        self._closed = self._closed or b"}" in encoded
        if self._enabled and self._opened and self._closed:
            if not both_before:
                so_far[:] = so_far.replace(b"{", b"\\u007b")
            encoded = encoded.replace(b"{", b"\\u007b")
        so_far += encoded[1:-1]
        return b'"%b"' % bytes(so_far)


def micros(seconds: float) -> int:
    """Whole microseconds; what lies below is an artefact of subtracting clock stamps."""
    return round(seconds * _US)
