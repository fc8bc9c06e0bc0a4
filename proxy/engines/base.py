"""The seam between the gateway and whatever generates tokens.

An engine starts, takes requests, answers each with a `TokenStream`, and tells
how it is. Everything that is particular to one engine stays behind this file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Protocol

from proxy.engines.stream import TokenStream
from translators.sampling import ModelDefaults, Sampling


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What the running engine says about itself; known once it has started."""

    names: tuple[str, ...]
    """The served model names, the first being the main one."""
    max_model_len: int
    """Tokens of prompt and answer together."""
    max_position_embeddings: int
    vocab_size: int
    max_num_seqs: int
    priority_scheduling: bool
    defaults: ModelDefaults = field(default_factory=ModelDefaults)


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """One generation, in engine-neutral terms.

    `request_id` is unique among all requests of this process; `priority` is
    lower for earlier, 0 by default.
    """

    request_id: str
    text: str
    prompt: list[int]
    sampling: Sampling
    priority: int = 0


@dataclass(frozen=True, slots=True)
class Load:
    """The engine's scheduler, at its last step."""

    running: int = 0
    waiting: int = 0
    kv_cache_usage: float = 0.0
    """Used share of the KV cache, 0 to 1."""


def total(loads: Iterable[Load]) -> Load:
    """The load of several engines that serve one model: sums, and the fullest cache."""
    loads = list(loads)
    return Load(
        running=sum(load.running for load in loads),
        waiting=sum(load.waiting for load in loads),
        kv_cache_usage=max((load.kv_cache_usage for load in loads), default=0.0),
    )


class Engine(Protocol):
    """One engine. All methods belong to the event loop that runs the server."""

    async def start(self, on_death: Callable[[str], None]) -> ModelInfo:
        """Load and get ready; takes seconds to minutes.

        `on_death` is called once, on the event loop, when the engine can never
        answer again; its argument is a reason for the log.
        """

    async def tokenize(self, text: str) -> list[int]:
        """The token ids of a prompt, special tokens included as the model wants them."""

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
