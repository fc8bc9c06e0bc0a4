"""Checked parameters to what an engine samples with (contract §3).

Nothing here is specific to an engine: greedy is temperature 0, "off" is None.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final

from translators.contract import DEFAULT_TOP_K
from translators.request import Parameters

SAMPLED_WITH: Final = ("temperature", "top_k", "top_p", "repetition_penalty")
"""What a client or a model's generation_config may say about sampling."""
GREEDY_BELOW: Final = 1e-5
"""Temperatures under this are greedy: vLLM does not divide by them."""
_INT64_MAX: Final = 2**63 - 1
_NO_SEED: Final = -1
"""vLLM reads -1 as "no seed"; the fold of the largest seed would hit it."""
_FOLDED_NO_SEED: Final = -(2**62)
_HOTTEST: Final = 3.4028234663852886e38
"""The largest float32; hotter is as even as this."""
_PENALTY_LIMITS: Final = (1e-30, 1e30)
"""Beyond these a logit becomes infinite or NaN in the engine's float32."""


@dataclass(frozen=True, slots=True)
class ModelDefaults:
    """What the model's generation_config says; None where it is silent."""

    do_sample: bool | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    repetition_penalty: float | None = None

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> ModelDefaults:
        """Take the known keys of a generation_config.json, ignoring the rest."""
        return cls(**{key: config.get(key) for key in cls.__dataclass_fields__})


@dataclass(frozen=True, slots=True)
class Sampling:
    """Engine-neutral sampling values.

    `temperature` 0.0 is greedy; `top_k` None is off; `seed` None is random,
    else a signed 64-bit integer other than -1. `logprobs` None asks for no log
    probabilities, n for the token's own and those of the n likeliest. `unsaid`
    names the values that are the contract's, because neither client nor model
    said any.
    """

    temperature: float
    top_k: int | None
    top_p: float
    repetition_penalty: float
    seed: int | None
    max_tokens: int
    bad_words: tuple[str, ...] = ()
    logprobs: int | None = None
    frequency_penalty: float = 0.0
    unsaid: frozenset[str] = field(default=frozenset(), compare=False)

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0


def resolve_sampling(
    parameters: Parameters, defaults: ModelDefaults, *, vocab_size: int, room: int
) -> Sampling:
    """Decide between greedy and sampling and fill in what is missing.

    A sampling request takes it from the model, then from contract §3; a greedy
    one, however it became greedy, has nothing to take.

    `room` is the largest number of new tokens that the context and the server
    allow; more is cut, never refused.
    """
    temperature = _temperature(parameters, defaults)
    if temperature == 0.0:
        top_k, top_p = None, 1.0
        penalty = _first(parameters.repetition_penalty, 1.0)
    else:
        top_k = _top_k(_first(parameters.top_k, defaults.top_k, DEFAULT_TOP_K), vocab_size)
        top_p = _first(parameters.top_p, defaults.top_p, 1.0)
        penalty = _first(parameters.repetition_penalty, defaults.repetition_penalty, 1.0)
    return Sampling(
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        repetition_penalty=_penalty(penalty),
        seed=fold_seed(parameters.seed),
        max_tokens=min(parameters.max_new_tokens, room),
        bad_words=parameters.bad_words,
        logprobs=parameters.logprobs,
        frequency_penalty=parameters.frequency_penalty,
        unsaid=frozenset() if temperature == 0.0 else _unsaid(parameters, defaults),
    )


def _unsaid(parameters: Parameters, defaults: ModelDefaults) -> frozenset[str]:
    return _names(
        *(
            name
            for name in SAMPLED_WITH
            if getattr(parameters, name) is None and getattr(defaults, name) is None
        )
    )


@cache
def _names(*names: str) -> frozenset[str]:
    """The same set for every request that says the same."""
    return frozenset(names)


def _temperature(parameters: Parameters, defaults: ModelDefaults) -> float:
    """What the engine divides by; 0.0 is greedy."""
    if not _is_sampling(parameters, defaults):
        return 0.0
    wanted: float = _first(parameters.temperature, defaults.temperature, 1.0)
    return 0.0 if wanted < GREEDY_BELOW else min(wanted, _HOTTEST)


def _is_sampling(parameters: Parameters, defaults: ModelDefaults) -> bool:
    if parameters.do_sample is not None:
        return parameters.do_sample
    if (parameters.temperature, parameters.top_k, parameters.top_p) != (None, None, None):
        return True
    return bool(defaults.do_sample)


def _top_k(wanted: int, vocab_size: int) -> int | None:
    return min(wanted, vocab_size) if wanted > 0 else None


def _first(*values: Any) -> Any:
    return next(value for value in values if value is not None)


def _penalty(value: float) -> float:
    low, high = _PENALTY_LIMITS
    return min(max(value, low), high)


def fold_seed(seed: int | None) -> int | None:
    """A uint64 seed as int64, which is what the engine takes.

    The fold is two's complement; 2^64-1, which would become -1, shares a value
    with another large seed instead.
    """
    if seed is None or seed <= _INT64_MAX:
        return seed
    folded = seed - 2**64
    return _FOLDED_NO_SEED if folded == _NO_SEED else folded


def engine_priority(priority: int) -> int:
    """MindIE's 1 (highest) .. 5 as vLLM's -4 .. 0, where lower is earlier."""
    return priority - 5
