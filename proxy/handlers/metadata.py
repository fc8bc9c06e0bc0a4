"""What the gateway, its model and its engine are: the read-only routes of contract §7."""

from __future__ import annotations

from typing import Any

import orjson
from aiohttp import web

from proxy import SERVER_NAME, __version__
from proxy.gateway import GATEWAY, Gateway
from translators import metadata


async def server_metadata(request: web.Request) -> web.Response:
    """Name and version of the server, its limits under `extensions`."""
    gateway = request.app[GATEWAY]
    return _json(
        metadata.server_metadata(
            SERVER_NAME,
            __version__,
            max_iter_times=gateway.room(1),
            max_prefill_batch_size=gateway.info.max_num_seqs,
            max_prefill_tokens=gateway.info.max_num_batched_tokens,
        )
    )


async def model_metadata(request: web.Request) -> web.Response:
    """The tensors that infer takes and gives."""
    gateway, model = _served(request)
    return _json(metadata.model_metadata(model, device_type=gateway.info.device_type))


async def model_config(request: web.Request) -> web.Response:
    """Context length, memory of the KV cache in GiB, devices, and the model's directory name."""
    gateway, model = _served(request)
    info = gateway.info
    return _json(
        metadata.model_config(
            model,
            max_seq_len=info.max_model_len,
            kv_cache_bytes=info.kv_cache_bytes,
            cpu_kv_cache_bytes=info.cpu_kv_cache_bytes,
            world_size=info.world_size,
            model_path=info.model_path,
        )
    )


async def slot_count(request: web.Request) -> web.Response:
    """Sequences that run at once, how many more could, and the tokens that fit the KV cache."""
    gateway, _ = _served(request)
    gateway.check_taking_work()
    info, load = gateway.info, gateway.engine.load()
    return _json(
        metadata.slot_count(
            max_num_seqs=info.max_num_seqs,
            # What was just handed over is in no report of the scheduler yet.
            requests=max(load.running + load.waiting, await gateway.count_live()),
            kv_blocks=info.kv_blocks,
            block_size=info.block_size,
            kv_cache_usage=load.kv_cache_usage,
        )
    )


async def tgi_info(request: web.Request) -> web.Response:
    """TGI's and MindIE's description of models and limits."""
    gateway = request.app[GATEWAY]
    gateway.check_taking_work()
    info = gateway.info
    return _json(
        metadata.tgi_info(
            info.names,
            __version__,
            max_num_seqs=info.max_num_seqs,
            max_num_batched_tokens=info.max_num_batched_tokens,
            max_input_tokens=gateway.prompt_limit,
            max_total_tokens=info.max_model_len,
            device_type=info.device_type,
            dtype=info.dtype,
        )
    )


async def openai_models(request: web.Request) -> web.Response:
    """The served models in OpenAI's form."""
    gateway = request.app[GATEWAY]
    info = gateway.info
    return _json(
        metadata.openai_models(
            info.names,
            created=gateway.created,
            owner=SERVER_NAME,
            max_model_len=info.max_model_len,
        )
    )


def _served(request: web.Request) -> tuple[Gateway, str]:
    gateway, model = request.app[GATEWAY], request.match_info["model"]
    gateway.check_model(model)
    return gateway, model


def _json(document: dict[str, Any]) -> web.Response:
    return web.Response(body=orjson.dumps(document), content_type="application/json")
