"""generate: the whole answer as one JSON object (contract §7).

The keys and words are those of a frame of generate_stream; `batch_size` and
`queue_wait_time` are lists with one value per token, and there are no times.
"""

from __future__ import annotations

from typing import Any

import orjson

from translators.answer_text import AnswerText
from translators.contract import Contract
from translators.tokens import Finish, FinishReason, Token
from translators.triton_stream import BraceEscape, finish_word, json_string, micros


class TritonGenerate:
    """The answer to one request: `add` for each token until `ended`, then `body`.

    `stopped` takes the place of the missing tokens of a request that was
    stopped from outside. `max_tokens` is what the request may generate at most.
    """

    def __init__(
        self,
        *,
        request_id: str,
        model_name: str,
        details: bool,
        max_tokens: int,
        contract: Contract,
        brace_escape: bool = True,
        stop_words: tuple[str, ...] = (),
    ) -> None:
        self._request_id = request_id
        self._model_name = model_name
        self._details = details
        self._max_tokens = max_tokens
        self._contract = contract
        self._escape = BraceEscape(brace_escape)
        self._answer = AnswerText(stop_words, flush_tail=contract.flush_tail)
        self._texts: list[str] = []
        self._finish = Finish(FinishReason.STOPPED)
        self._batch_sizes: list[int] = []
        self._waits: list[int] = []
        self.ended = False
        self.generated = 0

    def add(self, token: Token) -> None:
        """One token. Must not be called once `ended` is true."""
        self.generated += 1
        text, finish = self._answer.push(token)
        self._texts.append(text)
        if self._details:
            self._batch_sizes.append(token.batch_size)
            self._waits.append(micros(token.waited))
        if finish is not None:
            self._end(finish)

    def stopped(self) -> None:
        """stopInfer ended the request: the answer is what there is."""
        self._texts.append(self._answer.stopped())
        self._end(Finish(FinishReason.STOPPED))

    def body(self) -> bytes:
        """The JSON object."""
        text = self._escape(json_string("".join(self._texts)))
        answer: dict[str, Any] = {
            "id": self._request_id,
            "model_name": self._model_name,
            "model_version": None,
            "text_output": orjson.Fragment(text),
        }
        if self._details:
            answer["details"] = self._details_object()
        return orjson.dumps(answer)

    def _end(self, finish: Finish) -> None:
        self.ended = True
        self._finish = finish

    def _details_object(self) -> dict[str, Any]:
        on_last = self.generated >= self._max_tokens
        return {
            "finish_reason": finish_word(self._contract, self._finish, on_last_token=on_last),
            "generated_tokens": self.generated,
            "first_token_cost": None,
            "decode_cost": None,
            "batch_size": self._batch_sizes,
            "queue_wait_time": self._waits,
        }
