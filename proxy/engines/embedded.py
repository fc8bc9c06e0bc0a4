"""vLLM's AsyncLLMEngine in this process. Beside `embedded_openai` the only module with vllm.

It chooses no device: vLLM finds its platform by its own plugins, of which
vllm-ascend is one. What differs between the supported vLLM versions is settled
at import, below; tests/vllm_surface.py lists every name that is used.

Tokens are read by `TokenTap`, below `generate()`; when this vLLM does not have
what the tap needs, or the operator says so, from vLLM's own collectors.
"""

from __future__ import annotations

import asyncio
import copy
import logging
import multiprocessing.connection
import os
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from pathlib import PurePath
from typing import Any, Final, NamedTuple

# Children start from a clean interpreter, as with vLLM's own server: a fork of
# this process would inherit its listening sockets.
os.environ.setdefault("VLLM_WORKER_MULTIPROC_METHOD", "spawn")

import vllm.exceptions
import vllm.v1.engine.utils
from vllm import AsyncEngineArgs, AsyncLLMEngine, SamplingParams
from vllm.inputs import tokens_input
from vllm.sampling_params import RequestOutputKind
from vllm.usage.usage_lib import UsageContext
from vllm.utils.argparse_utils import FlexibleArgumentParser
from vllm.utils.network_utils import get_open_zmq_ipc_path
from vllm.v1.engine import EngineCoreEventType
from vllm.v1.engine import FinishReason as VllmFinish
from vllm.v1.engine.exceptions import EngineDeadError
from vllm.v1.engine.utils import EngineZmqAddresses, launch_core_engines
from vllm.v1.executor import Executor
from vllm.v1.metrics.loggers import StatLoggerBase
from vllm.v1.metrics.stats import IterationStats, RequestStateStats

from proxy.children import apart
from proxy.engines.asgi import AsgiApi
from proxy.engines.base import EngineRequest, Load, ModelInfo, Prompt
from proxy.engines.collector import CollectorReader
from proxy.engines.detokenizer import Detokenizers
from proxy.engines.embedded_openai import add_openai_options, openai_api, openai_options
from proxy.engines.engine_line import MAX_ENGINES, Shared, SharedFigures
from proxy.engines.figures import SchedulerFigures
from proxy.engines.media_prompt import CONNECTOR_NAME, MediaPrompts, Tools
from proxy.engines.openai import OpenAIApi
from proxy.engines.step_statistics import counts_alike, gather
from proxy.engines.stream import TokenStream
from proxy.engines.token_run import TokenRun
from proxy.engines.token_tap import TokenTap
from proxy.engines.vllm_words import HOTTEST_OF_NEW, reason_of, usable_temperature
from proxy.logs import PRIVATE, kept
from proxy.media.content import PromptPart
from proxy.settings import SettingsError
from proxy.threads import in_thread
from translators.contract import FLOAT32_MAX
from translators.errors import (
    GatewayError,
    GenerationError,
    IncompleteGeneration,
    Overloaded,
)
from translators.media import TextPart
from translators.sampling import ModelDefaults, Sampling
from translators.tokens import FinishReason

log = logging.getLogger(__name__)

_INLINE_CHARACTERS: Final = 8192
"""Prompts up to this length are tokenized on the loop; longer ones in a thread."""
_INLINE_TOKENS: Final = 512
"""The same for prompts whose tokens are shown one by one."""
_HEALTH_PERIOD: Final = 0.5
"""Seconds between looks at whether the engine's processes are alive."""
_BUSY: Final = getattr(vllm.exceptions, "GracefulHTTPError", ())
"""vLLM's own admission control, from 0.32 on."""
_LAUNCH: Final = getattr(vllm.v1.engine.utils, "CoreEngineLaunch", None)
"""What launching engines gives, from 0.32 on; a tuple before."""
_REFUSALS: Final = (
    vllm.exceptions.VLLMValidationError,
    getattr(vllm.exceptions, "VLLMClientError", vllm.exceptions.VLLMValidationError),
    ValueError,
    TypeError,
)


def _hottest() -> float:
    """The highest temperature that this vLLM takes."""
    try:
        SamplingParams(temperature=FLOAT32_MAX)
    except _REFUSALS:
        return HOTTEST_OF_NEW
    return FLOAT32_MAX


_HOTTEST: Final = _hottest()


def engine_parser() -> FlexibleArgumentParser:
    """vLLM's own engine options, with the two defaults that are ours."""
    parser: FlexibleArgumentParser = AsyncEngineArgs.add_cli_args(
        FlexibleArgumentParser(prog="mindie-gateway serve MODEL", usage="%(prog)s [vLLM options]")
    )
    add_openai_options(parser)
    # Media stay where the client put them also with templates that take only text.
    parser.set_defaults(scheduling_policy="priority", interleave_mm_strings=True)
    return parser


class VllmOptions(NamedTuple):
    """vLLM's part of the command line."""

    engine: AsyncEngineArgs
    openai: dict[str, Any]
    """Options of its OpenAI API that were given."""


def parse_options(model: str | None, flags: list[str]) -> VllmOptions:
    """vLLM's options from the command line. SettingsError when vLLM refuses them."""
    arguments = ["--model", model, *flags] if model is not None else flags
    try:
        parsed = engine_parser().parse_args(arguments)
        engine: AsyncEngineArgs = AsyncEngineArgs.from_cli_args(parsed)
    except SystemExit:
        raise SettingsError("vLLM does not accept these engine options (see above)") from None
    return VllmOptions(engine, openai_options(parsed))


def parse_engine_args(model: str | None, flags: list[str]) -> AsyncEngineArgs:
    """The same without the OpenAI API's."""
    return parse_options(model, flags).engine


class _Words:
    """The spelling of this vLLM's events and finish reasons."""

    queued = EngineCoreEventType.QUEUED
    scheduled = EngineCoreEventType.SCHEDULED
    preempted = EngineCoreEventType.PREEMPTED
    error = VllmFinish.ERROR

    def reason(self, finish_reason: Any) -> FinishReason | None:
        """The neutral reason of vLLM's, an enum member or its name."""
        return reason_of(finish_reason)


class EmbeddedEngine:
    """AsyncLLMEngine behind the gateway's seam."""

    def __init__(
        self,
        args: AsyncEngineArgs,
        *,
        direct_tokens: bool = True,
        media_prompt: str = "auto",
        max_pixels: int = 8192 * 8192,
        media_seconds: float = 60.0,
        openai: Mapping[str, Any] | None = None,
        shared: Shared | None = None,
    ) -> None:
        """`openai` holds options of vLLM's OpenAI API; None leaves the API out.

        `shared` are engines of another process; None: there will be some in this one.
        """
        self._args = args
        self._media_prompt = media_prompt
        self._max_pixels = max_pixels
        self._media_seconds = media_seconds
        self._prompts: MediaPrompts | None = None
        self._direct = direct_tokens
        self._words = _Words()
        self._engine: Any = None
        self._tap: TokenTap | None = None
        self._shared = shared
        self._figures = (
            SchedulerFigures()
            if shared is None
            else SharedFigures(shared.line.board, shared.line.worker)
        )
        self._tokenizer: Any = None
        self._spare_tokenizer: Any = None
        self._detokenizers: Detokenizers
        self._tokenizing = asyncio.Lock()
        self._background: set[asyncio.Future[Any]] = set()
        self._on_death: Callable[[str], None] = lambda reason: None
        self._dead = False
        self._openai_options = openai
        self._openai: AsgiApi | None = None
        self._warned_temperature = False

    async def start(self, on_death: Callable[[str], None]) -> ModelInfo:
        with kept():
            return await self._start(on_death)

    async def _start(self, on_death: Callable[[str], None]) -> ModelInfo:
        self._on_death = on_death
        if self._shared is not None:
            self._keep(self._watch_line(self._shared))
        self._engine = await in_thread(self._make_engine)
        self._tokenizer = self._engine.get_tokenizer()
        if self._tokenizer is None:
            raise SettingsError("the gateway needs the tokenizer: leave --skip-tokenizer-init out")
        self._spare_tokenizer = _second(self._tokenizer)
        self._detokenizers = Detokenizers(self._tokenizer)
        self._engine._run_output_handler()
        self._open_token_path()
        if self._engine.vllm_config.model_config.is_multimodal_model:
            self._prompts = await in_thread(self._make_prompts)
        self._keep(self._watch_health())
        info = self._describe()
        if self._openai_options is not None:
            self._openai = await openai_api(
                self._engine, self._args, info.names, self._openai_options
            )
        return info

    @property
    def openai(self) -> OpenAIApi | None:
        return self._openai

    def _make_engine(self) -> Any:
        factory = partial(_StepListener, self._step_done)
        if self._shared is not None:
            return self._join(self._shared, factory)
        with apart():
            return AsyncLLMEngine.from_engine_args(self._args, stat_loggers=[factory])

    def _join(self, shared: Shared, factory: Callable[..., Any]) -> Any:
        """Be one of several clients of engines that run elsewhere."""
        args, worker = self._args, shared.line.worker
        args._api_process_count, args._api_process_rank = worker.count, worker.index
        return AsyncLLMEngine.from_vllm_config(
            args.create_engine_config(UsageContext.ENGINE_CONTEXT),
            stat_loggers=[factory],
            enable_log_requests=args.enable_log_requests,
            aggregate_engine_logging=args.aggregate_engine_logging,
            disable_log_stats=args.disable_log_stats,
            client_addresses=dict(shared.addresses),
            client_count=worker.count,
            client_index=worker.index,
        )

    def _make_prompts(self) -> MediaPrompts | None:
        inputs = self._engine.input_processor
        if not inputs.supports_mm_inputs:
            return None
        return MediaPrompts(
            self._engine,
            _media_tools(),
            self._media_prompt,
            self._max_pixels,
            self._media_seconds,
        )

    def _open_token_path(self) -> None:
        if not self._direct:
            return
        processor = self._engine.output_processor
        needed = (
            "request_states",
            "process_outputs",
            "propagate_error",
            "_update_stats_from_output",
        )
        missing = [name for name in needed if not hasattr(processor, name)]
        if missing:
            log.warning("this vLLM has no %s: tokens are read from its collectors", missing)
            return
        alike = counts_alike(processor._update_stats_from_output, IterationStats, RequestStateStats)
        self._tap = TokenTap(processor, self._words, self._died, counts_alike=alike)
        if self._engine.logger_manager is not None:
            gather(self._engine.logger_manager.stat_loggers, "histogram_inter_token_latency")

    def _describe(self) -> ModelInfo:
        config = self._engine.vllm_config
        model, scheduler = config.model_config, config.scheduler_config
        limit = getattr(model.hf_text_config, "max_position_embeddings", None)
        return ModelInfo(
            names=served_names(self._args),
            max_model_len=model.max_model_len,
            max_position_embeddings=limit or model.max_model_len,
            vocab_size=model.get_vocab_size(),
            max_num_seqs=scheduler.max_num_seqs * config.parallel_config.data_parallel_size,
            priority_scheduling=scheduler.policy == "priority",
            defaults=_generation_defaults(model),
            special_token_ids=frozenset(getattr(self._tokenizer, "all_special_ids", ())),
            max_num_batched_tokens=scheduler.max_num_batched_tokens,
            world_size=config.parallel_config.world_size_across_dp,
            model_path=model.model,
            device_type=config.device_config.device_type,
            dtype=str(model.dtype).removeprefix("torch."),
            **_cache_figures(config),
            media={} if self._prompts is None else self._prompts.limits,
            placeholders=() if self._prompts is None else self._prompts.placeholders,
        )

    async def tokenize(self, text: str) -> list[int]:
        if len(text) <= _INLINE_CHARACTERS:
            return list(self._tokenizer.encode(text))
        # One at a time, with a tokenizer of its own: they are not safe to share.
        async with self._tokenizing:
            return await asyncio.to_thread(self._encode, text)

    def _encode(self, text: str) -> list[int]:
        # A copy of a million ids would hold the interpreter, and so the loop, for milliseconds.
        ids = self._spare_tokenizer.encode(text)
        return ids if type(ids) is list else list(ids)

    async def pieces(self, ids: list[int]) -> list[str]:
        if len(ids) <= _INLINE_TOKENS:
            return [self._piece(token_id) for token_id in ids]
        async with self._tokenizing:
            decode = self._spare_tokenizer.decode
            return await asyncio.to_thread(lambda: [decode([token_id]) for token_id in ids])

    def _piece(self, token_id: int) -> str:
        return str(self._tokenizer.decode([token_id]))

    async def prepare(self, parts: Sequence[PromptPart]) -> Prompt:
        if self._prompts is None:
            text = "".join(part.text for part in parts if isinstance(part, TextPart))
            return Prompt(await self.tokenize(text))
        try:
            return await self._prompts.prepare(parts)
        except Exception as error:
            raise _as_gateway_error(error) from error

    async def submit(self, request: EngineRequest) -> TokenStream:
        stream = TokenStream(lambda: self._cancel(request.request_id))
        detokenizer = self._detokenizers.after(request.prompt)
        run = TokenRun(request.request_id, stream, detokenizer, self._piece)
        if self._tap is not None:
            self._tap.runs[request.request_id] = run
        # Rendered, as vLLM calls it: it takes a raw prompt through a thread first.
        prompt = request.payload or tokens_input(request.prompt)
        try:
            collector = await self._engine.add_request(
                request.request_id,
                prompt,
                self._sampling_params(request.sampling),
                trace_headers=request.trace or None,
                priority=request.priority,
            )
        except asyncio.CancelledError:
            stream.close()
            raise
        except Exception as error:
            self._forget(request.request_id)
            raise _as_gateway_error(error) from error
        if self._tap is None:
            reader = CollectorReader(run, self._words, top=request.sampling.logprobs or 0)
            self._keep(self._read(collector, run, reader))
        else:
            # Nobody reads vLLM's own queue: it must not fill.
            collector.put = _discard
        return stream

    def _sampling_params(self, sampling: Sampling) -> SamplingParams:
        return SamplingParams(
            temperature=self._temperature(sampling.temperature),
            top_k=sampling.top_k or 0,
            top_p=sampling.top_p,
            repetition_penalty=sampling.repetition_penalty,
            seed=sampling.seed,
            max_tokens=sampling.max_tokens,
            bad_words=list(sampling.bad_words) or None,
            logprobs=sampling.logprobs,
            frequency_penalty=sampling.frequency_penalty,
            detokenize=False,
            output_kind=RequestOutputKind.DELTA,
        )

    def _temperature(self, wanted: float) -> float:
        if wanted > _HOTTEST and not self._warned_temperature:
            self._warned_temperature = True
            log.warning(
                "this vLLM samples with temperatures up to %g: higher ones are cut", _HOTTEST
            )
        return usable_temperature(wanted, _HOTTEST)

    async def _read(self, collector: Any, run: TokenRun, reader: CollectorReader) -> None:
        """The collector path: one task per request, over outputs that may be merged."""
        try:
            finished = False
            while not finished:
                output = collector.get_nowait() or await collector.get()
                finished = output.finished
                reader.read(output, self._figures.load().running)
        except Exception as error:
            if isinstance(error, EngineDeadError):
                self._died(type(error).__name__)
            run.stream.fail(_as_gateway_error(error))

    def _cancel(self, request_id: str) -> None:
        """Free what the engine holds for a request whose stream has ended early."""
        self._forget(request_id)
        if not self._dead:
            self._keep(self._engine.abort(request_id))

    def _forget(self, request_id: str) -> None:
        if self._tap is not None:
            self._tap.runs.pop(request_id, None)

    def _step_done(self, engine_index: int, scheduler: Any, iteration: Any) -> None:
        """The statistics of one step of one engine, in the task that reads the engines."""
        if scheduler is not None:
            self._figures.scheduled(engine_index, scheduler)
        if iteration is None:
            return
        self._figures.preempted(engine_index, iteration.num_preempted_reqs)
        if self._tap is not None:
            running = self._figures.of(engine_index).running
            # Those that ended with this step have left the scheduler already. Where another
            # client got its report, what is known is that of the step before.
            ended = 0 if scheduler is None else len(iteration.finished_requests)
            self._tap.step_done(running + ended)

    async def _watch_health(self) -> None:
        while not self._engine.errored:
            await asyncio.sleep(_HEALTH_PERIOD)
        self._died("the engine's process ended")

    async def _watch_line(self, shared: Shared) -> None:
        await shared.line.end()
        self._died("the process of the engines ended")

    def _died(self, reason: str) -> None:
        if not self._dead:
            self._dead = True
            self._on_death(reason)

    @property
    def available(self) -> bool:
        return not self._dead

    def load(self) -> Load:
        # What the scheduler said last is no longer so once it is gone.
        return Load() if self._dead else self._figures.load()

    async def close(self) -> None:
        self._dead = True
        if self._openai is not None:
            await self._openai.close()
        for task in self._background:
            task.cancel()
        if self._engine is not None:
            engine, self._engine = self._engine, None
            if engine.output_handler is not None:
                # It would log the end of the engine's process as a failure.
                engine.output_handler.cancel()
            await in_thread(engine.shutdown)

    def _keep(self, work: Coroutine[Any, Any, None]) -> None:
        """Run beside everything else; the loop itself holds tasks only weakly."""
        task = asyncio.ensure_future(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)


class EngineProcesses:
    """vLLM's engines for several clients, as `--api-server-count` of its own server has them."""

    def __init__(
        self,
        args: AsyncEngineArgs,
        clients: int,
        tell: Callable[[Sequence[Mapping[str, Any]]], None],
    ) -> None:
        """Returns once they run. `tell` gets each client's addresses before: they meet there."""
        args._api_process_count, args._api_process_rank = clients, -1
        config = args.create_engine_config(UsageContext.ENGINE_CONTEXT)
        _check_shareable(config)
        addresses = EngineZmqAddresses(
            inputs=[get_open_zmq_ipc_path() for _ in range(clients)],
            outputs=[get_open_zmq_ipc_path() for _ in range(clients)],
        )
        stats = not args.disable_log_stats
        executor = Executor.get_class(config)
        with apart(), launch_core_engines(config, executor, stats, addresses) as launched:
            if _LAUNCH is None:
                self._manager, self._coordinator, *_ = launched
            else:
                self._manager, self._coordinator = launched.engine_manager, launched.coordinator
            tell(_client_addresses(addresses, self._coordinator))

    def wait(self) -> None:
        """Until one of their processes has ended."""
        sentinels = list(self._manager.sentinels())
        if self._coordinator is not None:
            sentinels.append(self._coordinator.proc.sentinel)
        multiprocessing.connection.wait(sentinels)

    def close(self) -> None:
        self._manager.shutdown()
        if self._coordinator is not None:
            self._coordinator.shutdown()


def _check_shareable(config: Any) -> None:
    """SettingsError for what cannot be shared among processes, by vLLM or by us."""
    parallel = config.parallel_config
    engines = parallel.data_parallel_size
    here = parallel.data_parallel_backend == "mp" and parallel.data_parallel_size_local == engines
    if not here or parallel.data_parallel_rank != 0 or engines > MAX_ENGINES:
        raise SettingsError("with workers all engines must run on this machine, by mp")
    media = config.model_config.multimodal_config
    if media is not None and media.mm_tensor_ipc == "torch_shm":
        raise SettingsError("with workers --mm-tensor-ipc torch_shm does not work")
    if os.environ.get("VLLM_ALLOW_RUNTIME_LORA_UPDATING", "0").lower() in ("1", "true"):
        raise SettingsError("with workers adapters cannot be loaded at runtime")


def _client_addresses(addresses: Any, coordinator: Any) -> list[dict[str, str]]:
    statistics = (
        {}
        if coordinator is None
        else {"stats_update_address": coordinator.get_stats_publish_address()}
    )
    return [
        {"input_address": entrance, "output_address": exit_, **statistics}
        for entrance, exit_ in zip(addresses.inputs, addresses.outputs, strict=True)
    ]


class _StepListener(StatLoggerBase):
    """A stat logger that only passes the figures on. vLLM makes one per data-parallel engine."""

    def __init__(
        self, listener: Callable[[int, Any, Any], None], vllm_config: Any, engine_index: int = 0
    ) -> None:
        self._listener = listener
        self._engine = engine_index

    def record(
        self,
        scheduler_stats: Any,
        iteration_stats: Any,
        mm_cache_stats: Any = None,
        engine_idx: int = 0,
    ) -> None:
        self._listener(engine_idx, scheduler_stats, iteration_stats)

    def log_engine_initialized(self) -> None:
        """Nothing to say."""


def _media_tools() -> Tools:
    """What multimodal prompts need of vLLM; not imported for text models."""
    from vllm.model_executor.model_loader import get_model_cls
    from vllm.multimodal.media import MEDIA_CONNECTOR_REGISTRY, MediaConnector
    from vllm.renderers.inputs.preprocess import extract_prompt_components
    from vllm.renderers.params import ChatParams
    from vllm.transformers_utils.processor import get_video_processor_cls_name

    configured = os.environ.get("VLLM_MEDIA_CONNECTOR", CONNECTOR_NAME)
    if configured != CONNECTOR_NAME:
        log.warning("VLLM_MEDIA_CONNECTOR=%s has no effect here", configured)
    os.environ["VLLM_MEDIA_CONNECTOR"] = CONNECTOR_NAME
    return Tools(
        connector=MediaConnector,
        registry=MEDIA_CONNECTOR_REGISTRY,
        chat_params=ChatParams,
        components=extract_prompt_components,
        model_class=get_model_cls,
        refusals=(*_REFUSALS, ImportError),
        video_processor=get_video_processor_cls_name,
    )


def _second(tokenizer: Any) -> Any:
    """A tokenizer for another thread, since most are not safe to share.

    Those that vLLM keeps in a pool are, and in 0.23 the copy of such a one is None.
    """
    copied = copy.deepcopy(tokenizer)
    return tokenizer if copied is None else copied


def served_names(args: AsyncEngineArgs) -> tuple[str, ...]:
    """The names of --served-model-name, else the last part of the model's path."""
    names = args.served_model_name
    if not names:
        return (PurePath(args.model).name,)
    return (names,) if isinstance(names, str) else tuple(names)


def _generation_defaults(model: Any) -> ModelDefaults:
    config = {} if model.generation_config == "vllm" else model.try_get_generation_config()
    return ModelDefaults.from_config({**config, **model.override_generation_config})


def _cache_figures(config: Any) -> dict[str, Any]:
    """The KV cache as it came out of the engine's start."""
    cache, engines = config.cache_config, config.parallel_config.data_parallel_size
    blocks = cache.num_gpu_blocks
    return {
        # Each engine keeps one block for itself, which no request can fill.
        "kv_blocks": None if blocks is None else max(blocks - engines, 0),
        "block_size": cache.block_size,
        "kv_cache_bytes": cache.kv_cache_memory_bytes,
        "cpu_kv_cache_bytes": int((cache.kv_offloading_size or 0) * 2**30),
    }


def _as_gateway_error(error: Exception) -> GatewayError:
    """Foreign errors, mapped in this one place. Their texts stay in the log."""
    if isinstance(error, GatewayError):
        return error
    if isinstance(error, EngineDeadError):
        return IncompleteGeneration("the engine died")
    if isinstance(error, _BUSY):
        return Overloaded("the engine's queue is full", retry_after=1)
    if isinstance(error, _REFUSALS):
        log.warning("the engine refused a request: %s", type(error).__name__)
        return GenerationError("the engine refuses this request")
    log.error(
        "the engine failed on a request: %s", type(error).__name__, exc_info=error, extra=PRIVATE
    )
    return IncompleteGeneration("the engine failed on this request")


def _discard(output: object) -> None:
    """Takes the place of a collector's `put`."""
