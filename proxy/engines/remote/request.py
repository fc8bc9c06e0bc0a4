"""A generation as the body of vLLM's /v1/completions or its chat: every value is said."""

from __future__ import annotations

from typing import Any, Final

from proxy.engines.base import EngineRequest
from proxy.engines.remote.message import ChatMessage, LargeBody
from proxy.engines.remote.probe import Profile
from proxy.engines.vllm_words import usable_temperature

_FIXED: Final[dict[str, Any]] = {
    "n": 1,
    "stream": True,
    "return_token_ids": True,
    # Else the server would take these from the model's generation_config.
    "min_p": 0.0,
    "presence_penalty": 0.0,
}


def completion(request: EngineRequest, profile: Profile, *, try_number: int) -> dict[str, Any]:
    """The JSON object to send to a server with this profile.

    Where the server does not tell its model's defaults, what neither client nor
    model said is left out, so that the server fills it in. `try_number` keeps
    the server's ids apart when a request is tried again.
    """
    sampling = request.sampling
    document: dict[str, Any] = {
        **_FIXED,
        "model": profile.names[0],
        "prompt": request.prompt,
        "request_id": f"{request.request_id}-{try_number}",
        "max_tokens": sampling.max_tokens,
        "temperature": usable_temperature(sampling.temperature, profile.hottest),
        "top_k": sampling.top_k or 0,
        "top_p": sampling.top_p,
        "frequency_penalty": sampling.frequency_penalty,
        "repetition_penalty": sampling.repetition_penalty,
    }
    if profile.defaults is None:
        for name in sampling.unsaid:
            del document[name]
    if sampling.seed is not None:
        document["seed"] = sampling.seed
    if sampling.logprobs is not None:
        document |= {"logprobs": sampling.logprobs, "return_tokens_as_token_ids": True}
    if sampling.bad_words:
        document["bad_words"] = list(sampling.bad_words)
    if profile.priority:
        document["priority"] = request.priority
    return document | _counting(profile)


def chat(
    request: EngineRequest, message: ChatMessage, profile: Profile, *, try_number: int
) -> LargeBody:
    """The same as the body of /v1/chat/completions, for a prompt with media."""
    document = completion(request, profile, try_number=try_number)
    del document["prompt"]
    return message.body(document)


def _counting(profile: Profile) -> dict[str, Any]:
    """Ask for usage only where something in it is read: it costs the server time per token."""
    if not profile.token_ids:
        return {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}
    if profile.queue_time:
        return {"stream_options": {"include_usage": True}}
    return {}
