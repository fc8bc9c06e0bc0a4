"""A vLLM OpenAI server for tests: raw asyncio on loopback, the two dialects of real servers.

The shapes are those that vLLM 0.23.0 and 0.32.0 were seen to write. A test can
replace the answer to /v1/completions by any bytes, at any pace (`answer`).
"""

from __future__ import annotations

import asyncio
import base64
import codecs
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

OLD: Final = "0.23.0"
NEW: Final = "0.32.0"
END: Final = 0
"""The end token; it has no text."""
_SPECIAL: Final = "<|end|>"
_BYTES: Final = 256
METRICS: Final = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="smol"} 0.0
vllm:num_requests_waiting{engine="0",model_name="smol"} 0.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="smol",reason="capacity"} 7.0
vllm:kv_cache_usage_perc{engine="0",model_name="smol"} 0.0
vllm:request_queue_time_seconds_count{engine="0",model_name="smol"} 0.0
vllm:request_queue_time_seconds_sum{engine="0",model_name="smol"} 0.0
vllm:num_preemptions_total{engine="0",model_name="smol"} 0.0
vllm:prefix_cache_queries_total{engine="0",model_name="smol"} 0.0
vllm:prefix_cache_hits_total{engine="0",model_name="smol"} 0.0
vllm:cache_config_info{block_size="128",engine="0",num_gpu_blocks="364"} 1.0
"""
"""What matters of a real metrics page, of a server with nothing to do."""
_WORD: Final = re.compile(r" ?[^ ]+| +")
EVENT_STREAM: Final = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)


class Tokenizer:
    """Words are tokens, and so are the bytes of words that are not ASCII."""

    def __init__(self) -> None:
        self._words: list[str] = []

    def encode(self, text: str) -> list[int]:
        ids: list[int] = []
        for word in _WORD.findall(text):
            ids += [self._word(word)] if word.isascii() else [1 + byte for byte in word.encode()]
        return ids

    def _word(self, word: str) -> int:
        if word not in self._words:
            self._words.append(word)
        return 1 + _BYTES + self._words.index(word)

    def raw(self, token_id: int) -> bytes:
        if token_id == END:
            return _SPECIAL.encode()
        if token_id <= _BYTES:
            return bytes([token_id - 1])
        return self._words[token_id - 1 - _BYTES].encode()

    def decode(self, ids: list[int]) -> str:
        return b"".join(map(self.raw, ids)).decode("utf-8", "replace")

    def knows(self, token_id: int) -> bool:
        return 0 <= token_id < 1 + _BYTES + len(self._words)


@dataclass
class Call:
    """One request to /v1/completions or to the chat, and the way to answer it."""

    server: FakeVllm
    document: dict[str, Any]
    headers: dict[str, str]
    writer: asyncio.StreamWriter
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the client has closed its connection."""
    answered: bool = False

    @property
    def is_chat(self) -> bool:
        return "messages" in self.document

    @property
    def prompt(self) -> list[int]:
        if self.is_chat:
            return self.server.chat_tokens(self.document["messages"]) or []
        ids: list[int] = self.document["prompt"]
        return ids

    async def send(self, data: bytes) -> None:
        """Raw bytes, at once."""
        self.writer.write(data)
        await self.writer.drain()

    async def chunk(self, data: bytes) -> None:
        """One HTTP chunk."""
        await self.send(b"%x\r\n%b\r\n" % (len(data), data))

    async def event(self, document: Any) -> None:
        await self.chunk(b"data: " + orjson.dumps(document) + b"\n\n")

    async def end(self) -> None:
        await self.chunk(b"data: [DONE]\n\n")
        await self.send(b"0\r\n\r\n")

    def reset(self) -> None:
        """Cut the connection hard."""
        self.writer.transport.abort()

    def tokens(
        self, ids: list[int], text: str, *, reason: str | None = None, first: bool = False
    ) -> dict[str, Any]:
        """A chunk as vLLM writes it."""
        if self.is_chat:
            return self._chat_tokens(ids, text, reason)
        return {
            "id": "cmpl-" + self.document.get("request_id", "1"),
            "object": "text_completion",
            "created": 1795983432,
            "model": self.document["model"],
            "choices": [
                {
                    "index": 0,
                    "text": text,
                    "logprobs": None,
                    "finish_reason": reason,
                    "stop_reason": None,
                    "prompt_token_ids": self.document["prompt"] if first else None,
                    "token_ids": ids if self.document.get("return_token_ids") else None,
                }
            ],
        }

    def _chat_tokens(self, ids: list[int], text: str, reason: str | None) -> dict[str, Any]:
        return {
            "id": "chatcmpl-" + self.document.get("request_id", "1"),
            "object": "chat.completion.chunk",
            "created": 1795983432,
            "model": self.document["model"],
            "choices": [
                {
                    "index": 0,
                    "delta": {"content": text},
                    "logprobs": None,
                    "finish_reason": reason,
                    "token_ids": ids if self.document.get("return_token_ids") else None,
                }
            ],
        }

    def first_words(self) -> dict[str, Any]:
        """What a chat begins with."""
        words = self._chat_tokens([], "", None)
        words["choices"][0] |= {"delta": {"role": "assistant", "content": ""}, "token_ids": None}
        return {**words, "prompt_token_ids": self.prompt}

    def usage(self, completion: int) -> dict[str, int]:
        prompt = len(self.prompt)
        return {
            "prompt_tokens": prompt,
            "total_tokens": prompt + completion,
            "completion_tokens": completion,
        }


Answer = Callable[[Call], Awaitable[None]]


@dataclass
class FakeVllm:
    """One server. What a test changes here takes effect with the next request."""

    version: str = NEW
    names: tuple[str, ...] = ("smol", "alias")
    max_model_len: int = 2048
    queue_time_ms: float | None = None
    """What --enable-per-request-metrics would tell; None without that option."""
    per_chunk: int = 1
    """Tokens that are merged into each chunk after the first."""
    token_ids: bool = True
    takes_priority: bool = True
    hottest: float | None = 2.0
    """0.32 refuses higher temperatures; None as 0.23."""
    detokenizes: bool = True
    media: frozenset[str] = frozenset()
    """Kinds of media that it takes in chats: image, video, audio."""
    placeholder: str | None = None
    """A text that it refuses in chats, as real servers do with a model's own placeholder."""
    refused_media: frozenset[bytes] = frozenset()
    """Media that it cannot decode."""
    refusal_status: int = 400
    sampling_defaults: dict[str, float] | None = None
    metrics: str = ""
    healthy: bool = True
    script: list[int] | None = None
    """Tokens to answer with; by default the prompt again and again."""
    answer: Answer | None = None
    pace: float = 0.002
    """Seconds between tokens."""
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    """Closed (`clear()`), tokens after the first wait for it."""
    tokenizer: Tokenizer = field(default_factory=Tokenizer)
    calls: list[Call] = field(default_factory=list)
    """Completions, the probe's excepted."""
    others: dict[str, Answer] = field(default_factory=dict)
    """Answers to other paths."""
    asked: list[str] = field(default_factory=list)
    """Paths of all requests."""
    connections: int = 0
    port: int = 0

    def __post_init__(self) -> None:
        self.gate.set()
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def live(self) -> list[Call]:
        """Completions under way."""
        return [call for call in self.calls if not (call.answered or call.gone.is_set())]

    async def start(self) -> None:
        """Listen; again on the same port after `stop`."""
        self._server = await asyncio.start_server(self._connection, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Die: nobody listens, every connection is cut."""
        if self._server is not None:
            self._server.close()
        for writer in list(self._writers):
            writer.transport.abort()

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._writers.add(writer)
        try:
            while await self._request(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            self._writers.discard(writer)
            writer.close()

    async def _request(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        start, *lines = head.rstrip().split("\r\n")
        headers = {k.lower(): v.strip() for k, v in (line.split(":", 1) for line in lines)}
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        method, path, _ = start.split()
        self.asked.append(path)
        if path in self.others:
            call = Call(self, {"method": method, "body": body}, headers, writer)
            return await self._attend(call, self.others[path], reader)
        if method == "POST" and path in ("/v1/completions", "/v1/chat/completions"):
            call = Call(self, orjson.loads(body), headers, writer)
            return await self._complete(call, reader)
        status, document = self._page(path, orjson.loads(body) if body else {})
        content = document if isinstance(document, bytes) else orjson.dumps(document)
        writer.write(
            b"HTTP/1.1 %d X\r\ncontent-length: %d\r\ncontent-type: application/json\r\n\r\n%b"
            % (status, len(content), content)
        )
        return True

    def _page(self, path: str, document: dict[str, Any]) -> tuple[int, Any]:
        page = self._pages.get(path)
        return (404, {"detail": "Not Found"}) if page is None else page(document)

    @property
    def _pages(self) -> dict[str, Callable[[dict[str, Any]], tuple[int, Any]]]:
        return {
            "/health": lambda _: (200 if self.healthy else 503, b""),
            "/version": lambda _: (200, {"version": self.version}),
            "/v1/models": lambda _: (
                200,
                {"object": "list", "data": [*map(self._card, self.names)]},
            ),
            "/metrics": lambda _: (200 if self.metrics else 404, self.metrics.encode()),
            "/tokenize": self._tokenize,
            "/detokenize": self._detokenize,
            "/v1/completions/render": self._render,
        }

    def _tokenize(self, document: dict[str, Any]) -> tuple[int, Any]:
        if "messages" in document:
            if self.placeholder is not None and self.placeholder in str(document["messages"]):
                said = f"Found more '{self.placeholder}' placeholders in input prompt than actual"
                return self.refusal_status, _error(f"{said} multimodal data items.", 400)
            ids = self.chat_tokens(document["messages"])
            if ids is None:
                return self.refusal_status, _error("smol is not a multimodal model", 400)
        else:
            ids = self.tokenizer.encode(document["prompt"])
        length = self.max_model_len
        return 200, {"count": len(ids), "max_model_len": length, "tokens": ids, "token_strs": None}

    def chat_tokens(self, messages: Any) -> list[int] | None:
        """Text in its words, each medium as one token; None for what it does not take."""
        ids: list[int] = []
        for part in messages[0]["content"]:
            if part["type"] == "text":
                ids += self.tokenizer.encode(part["text"])
                continue
            kind = part["type"].removesuffix("_url")
            if kind not in self.media:
                return None
            head, _, data = part[part["type"]]["url"].partition(",")
            assert head.startswith("data:")
            assert head.endswith(";base64")
            if base64.b64decode(data, validate=True) in self.refused_media:
                return None
            ids += self.tokenizer.encode(f"<{kind}>")
        return ids

    def _detokenize(self, document: dict[str, Any]) -> tuple[int, Any]:
        if not self.detokenizes:
            return 404, {"detail": "Not Found"}
        return 200, {"prompt": self.tokenizer.decode(document["tokens"])}

    def _render(self, document: dict[str, Any]) -> tuple[int, Any]:
        if self.version != OLD:
            return 403, _error("Scale-out endpoints are disabled.", 403)
        told = {"temperature": 1.0, "top_p": 1.0, "repetition_penalty": 1.0}
        return 200, [{"sampling_params": told | (self.sampling_defaults or {})}]

    def _card(self, name: str) -> dict[str, Any]:
        return {
            "id": name,
            "object": "model",
            "owned_by": "vllm",
            "root": "/models/smol",
            "parent": None,
            "max_model_len": self.max_model_len,
        }

    async def _complete(self, call: Call, reader: asyncio.StreamReader) -> bool:
        """Answer one completion; False when the connection cannot be used again."""
        is_probe = call.document["max_tokens"] == 1 and "min_p" not in call.document
        if not is_probe:
            self.calls.append(call)
        answer = self.answer if self.answer is not None and not is_probe else self._answer
        return await self._attend(call, answer, reader)

    async def _attend(self, call: Call, answer: Answer, reader: asyncio.StreamReader) -> bool:
        """Play an answer until it ends or its client leaves."""
        answering = asyncio.ensure_future(answer(call))
        leaving = asyncio.ensure_future(reader.read(1))
        done, others = await asyncio.wait({answering, leaving}, return_when=asyncio.FIRST_COMPLETED)
        for other in others:
            other.cancel()
        # The client may reset the connection at any moment: that is looked at, not complained of.
        outcomes = await asyncio.gather(answering, leaving, return_exceptions=True)
        if leaving in done or isinstance(outcomes[0], ConnectionError):
            call.gone.set()
            return False
        call.answered = True
        if isinstance(outcomes[0], BaseException):
            raise outcomes[0]
        return not call.writer.transport.is_closing()

    async def _answer(self, call: Call) -> None:
        document = call.document
        refused = self._refusal(document)
        if refused is not None:
            content = orjson.dumps(refused)
            await call.send(
                b"HTTP/1.1 400 Bad Request\r\ncontent-length: %d\r\n\r\n%b"
                % (len(content), content)
            )
            return
        await call.send(EVENT_STREAM)
        if call.is_chat:
            await call.event(call.first_words())
        unknown = [item for item in call.prompt if not self.tokenizer.knows(item)]
        if unknown:
            await call.event(_error(f"Token id {unknown[0]} is out of vocabulary", 400))
            await call.end()
            return
        await self._tokens(call)

    def _refusal(self, document: dict[str, Any]) -> dict[str, Any] | None:
        if document["model"] not in self.names:
            return _error("The model does not exist.", 404)
        if document["max_tokens"] > self.max_model_len:
            return _error("max_tokens cannot be greater than max_model_len.", 400)
        if document.get("priority") and not self.takes_priority:
            return _error("priority is not supported", 400)
        if self.hottest is not None and document.get("temperature", 0.0) > self.hottest:
            return _error("temperature must be in [0, 2]", 400)
        return None

    async def _tokens(self, call: Call) -> None:
        options = call.document.get("stream_options") or {}
        count = 0
        async for ids, text, reason in self._groups(call):
            chunk = call.tokens(ids, text, reason=reason, first=not count)
            count += len(ids)
            if not self.token_ids:
                chunk["choices"][0]["token_ids"] = None
            if "logprobs" in call.document:
                chunk["choices"][0]["logprobs"] = _logprobs(ids, call.document["logprobs"])
            if options.get("continuous_usage_stats"):
                chunk["usage"] = call.usage(count)
            await call.event(chunk)
            await asyncio.sleep(self.pace)
            await self.gate.wait()
        if options.get("include_usage"):
            await call.event(self._last_words(call, count))
        await call.end()

    def _last_words(self, call: Call, count: int) -> dict[str, Any]:
        words = {**call.tokens([], ""), "choices": [], "usage": call.usage(count)}
        words["system_fingerprint"] = f"vllm-{self.version}-02b111dc"
        if self.version == NEW and self.queue_time_ms is not None:
            words["metrics"] = {
                "time_to_first_token_ms": 60.25,
                "queue_time_ms": self.queue_time_ms,
                "mean_itl_ms": None,
            }
        return words

    async def _groups(self, call: Call) -> AsyncIterator[tuple[list[int], str, str | None]]:
        """Ids, their text, and the reason when they are the last ones."""
        text = codecs.getincrementaldecoder("utf-8")("replace")
        ids = list(self._ids(call))
        begin, size = 0, 1
        while begin < len(ids):
            group = ids[begin : begin + size]
            begin, size = begin + size, self.per_chunk
            ended = ids[-1] == END
            reason = ("stop" if ended else "length") if begin >= len(ids) else None
            spoken = b"".join(self.tokenizer.raw(item) for item in group if item != END)
            yield group, text.decode(spoken), reason

    def _ids(self, call: Call) -> Iterator[int]:
        source = self.script or call.prompt
        for number in range(call.document["max_tokens"]):
            if self.script is not None and number >= len(source):
                return
            yield source[number % len(source)]


def _logprobs(ids: list[int], top: int) -> dict[str, Any]:
    """As with return_tokens_as_token_ids; the token itself is among the likeliest."""
    likeliest = [{f"token_id:{1 + one}": -0.25 - one for one in range(70, 70 + top)} for _ in ids]
    own = [{f"token_id:{item}": -0.125} for item in ids]
    return {
        "text_offset": [0] * len(ids),
        "token_logprobs": [-0.125] * len(ids),
        "tokens": [f"token_id:{item}" for item in ids],
        "top_logprobs": [{**mine, **others} for mine, others in zip(own, likeliest, strict=True)],
    }


def _error(message: str, code: int) -> dict[str, Any]:
    return {"error": {"message": message, "type": "X", "param": None, "code": code}}


@asynccontextmanager
async def fake_vllm(**behaviour: Any) -> AsyncIterator[FakeVllm]:
    """A fake server that listens."""
    server = FakeVllm(**behaviour)
    await server.start()
    try:
        yield server
    finally:
        await server.stop()
