"""The seam between the gateway and whatever generates tokens.

An engine starts, takes requests, answers each with a `TokenStream`, and tells
how it is. Everything that is particular to one engine stays behind this file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from proxy.engines.openai import OpenAIApi
from proxy.engines.stream import TokenStream
from proxy.media.content import PromptPart
from translators.media_formats import MediaKind
from translators.sampling import ModelDefaults, Sampling


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What the running engine says about itself; known once it has started.

    Fields with a default are for an engine that may not know: None is "it does
    not say" and is answered as null, never with a guess.
    """

    names: tuple[str, ...]
    """The served model names, the first being the main one."""
    max_model_len: int
    """Tokens of prompt and answer together."""
    max_position_embeddings: int
    vocab_size: int
    """Token ids are 0 to this, exclusive."""
    max_num_seqs: int
    """Sequences that run at once, over all data-parallel engines."""
    priority_scheduling: bool
    defaults: ModelDefaults = field(default_factory=ModelDefaults)
    media: Mapping[MediaKind, int] = field(default_factory=dict)
    """Media that the model takes besides text: the most items of each kind in one request."""
    placeholders: tuple[str, ...] = ()
    """Texts that stand for media in the model's prompts; none when the engine does not tell."""
    special_token_ids: frozenset[int] = frozenset()
    """Begin, end and other tokens that are no text."""
    max_num_batched_tokens: int | None = None
    """Tokens of one engine step at most."""
    kv_blocks: int | None = None
    """KV-cache blocks that requests can fill, over all data-parallel engines."""
    block_size: int | None = None
    """Tokens per KV-cache block."""
    kv_cache_bytes: int | None = None
    """KV cache of one device when its size was fixed; None when the engine sized it itself."""
    cpu_kv_cache_bytes: int = 0
    """Host memory that holds KV cache beside the device's; 0 for none."""
    world_size: int | None = None
    """Devices over all data-parallel engines."""
    model_path: str | None = None
    device_type: str | None = None
    """As the engine's platform calls itself: npu, cuda, cpu..."""
    dtype: str | None = None
    """Of the weights, such as bfloat16."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt of several parts, as the engine has prepared it."""

    ids: list[int]
    """Its tokens, those that stand for media included."""
    payload: Any = None
    """The engine's own; it comes back with the request."""


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """One generation, in engine-neutral terms.

    `request_id` is unique among all requests of this process; `priority` is
    lower for earlier, 0 by default. `prompt` is what the model reads; `text` is
    empty when the client sent token ids.
    """

    request_id: str
    text: str
    prompt: list[int]
    sampling: Sampling
    priority: int = 0
    payload: Any = None
    """What `prepare` made of a prompt of several parts; None for plain text."""
    trace: Mapping[str, str] = field(default_factory=dict)
    """Headers of W3C's trace context; empty outside any trace."""


@dataclass(frozen=True, slots=True)
class Load:
    """The engine's scheduler, at its last step."""

    running: int = 0
    waiting: int = 0
    kv_cache_usage: float = 0.0
    """Used share of the KV cache, 0 to 1."""
    preemptions: int | None = None
    """Since the start; None for an engine that does not say, as with the next two."""
    prefix_queries: int | None = None
    """Prompt tokens looked up in the prefix cache since the start."""
    prefix_hits: int | None = None
    """Of these, the ones that were found."""


def total(loads: Iterable[Load]) -> Load:
    """The load of several engines of one size that serve one model together."""
    loads = list(loads)
    return Load(
        running=sum(load.running for load in loads),
        waiting=sum(load.waiting for load in loads),
        kv_cache_usage=sum(load.kv_cache_usage for load in loads) / max(len(loads), 1),
        preemptions=_sum(load.preemptions for load in loads),
        prefix_queries=_sum(load.prefix_queries for load in loads),
        prefix_hits=_sum(load.prefix_hits for load in loads),
    )


def _sum(counts: Iterable[int | None]) -> int | None:
    """The sum of what is known; None where nothing is."""
    known = [count for count in counts if count is not None]
    return sum(known) if known else None


class Engine(Protocol):
    """One engine. All methods belong to the event loop that runs the server."""

    @property
    def openai(self) -> OpenAIApi | None:
        """The OpenAI API of the same model; None for an engine without one."""

    async def start(self, on_death: Callable[[str], None]) -> ModelInfo:
        """Load and get ready; takes seconds to minutes.

        `on_death` is called once, on the event loop, when the engine can never
        answer again; its argument is a reason for the log.
        """

    async def tokenize(self, text: str) -> list[int]:
        """The token ids of a prompt, special tokens included as the model wants them."""

    async def pieces(self, ids: list[int]) -> list[str]:
        """The text of each token by itself, special tokens as they are spelled."""

    async def prepare(self, parts: Sequence[PromptPart]) -> Prompt:
        """Turn text and media, in order, into what the model reads.

        The media are there until this returns; what is needed of them later goes
        into the payload. Raises InvalidInput naming the part that cannot be
        decoded, and GenerationError for what the engine refuses.
        """

    async def submit(self, request: EngineRequest) -> TokenStream:
        """Hand a request over; returns once the engine has accepted it.

        Raises GenerationError when the engine refuses the request, and
        IncompleteGeneration or ServiceUnavailable when it cannot take any.
        """

    @property
    def available(self) -> bool:
        """Whether it can take work now. One that cannot may come back; a dead one never does."""

    def load(self) -> Load:
        """What the scheduler last reported. Never calls the engine."""

    async def close(self) -> None:
        """Stop and free everything. Safe in every state, also twice."""
