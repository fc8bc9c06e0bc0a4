"""Every part of vLLM that the gateway touches, as data.

`HANDLES` says which expressions of our code hold which objects of vLLM; from
them and from our source text tests/test_vllm_surface.py finds each attribute,
call and keyword that we use, and looks it up in the surfaces recorded from all
supported versions (tests/data/). Whoever uses something new of vLLM adds its
handle here; a new vLLM version is recorded with `python -m tests.vllm_source`.
"""

from __future__ import annotations

from typing import Final, NamedTuple

VERSIONS: Final = ("0.23.0", "0.32.0")
"""The supported vLLM versions: the one vllm-ascend pairs with, and the newest."""

ASYNC_LLM: Final = "vllm.AsyncLLMEngine"
ENGINE_ARGS: Final = "vllm.AsyncEngineArgs"
OUTPUT_PROCESSOR: Final = "vllm.v1.engine.output_processor.OutputProcessor"
REQUEST_STATE: Final = "vllm.v1.engine.output_processor.RequestState"
COLLECTOR: Final = "vllm.v1.engine.output_processor.RequestOutputCollector"
CORE_OUTPUT: Final = "vllm.v1.engine.EngineCoreOutput"
CORE_EVENT: Final = "vllm.v1.engine.EngineCoreEvent"
EVENT_TYPE: Final = "vllm.v1.engine.EngineCoreEventType"
FINISH_REASON: Final = "vllm.v1.engine.FinishReason"
REQUEST_OUTPUT: Final = "vllm.outputs.RequestOutput"
COMPLETION_OUTPUT: Final = "vllm.outputs.CompletionOutput"
REQUEST_STATS: Final = "vllm.v1.metrics.stats.RequestStateStats"
SCHEDULER_STATS: Final = "vllm.v1.metrics.stats.SchedulerStats"
ITERATION_STATS: Final = "vllm.v1.metrics.stats.IterationStats"
STAT_LOGGER: Final = "vllm.v1.metrics.loggers.StatLoggerBase"
STAT_LOGGERS: Final = "vllm.v1.metrics.loggers.StatLoggerManager"
VLLM_CONFIG: Final = "vllm.config.VllmConfig"
MODEL_CONFIG: Final = "vllm.config.ModelConfig"
PARALLEL_CONFIG: Final = "vllm.config.ParallelConfig"
SCHEDULER_CONFIG: Final = "vllm.config.SchedulerConfig"
ENGINE_UTILS: Final = "vllm.v1.engine.utils"
CACHE_CONFIG: Final = "vllm.config.CacheConfig"
DEVICE_CONFIG: Final = "vllm.config.DeviceConfig"
PREFIX_CACHE_STATS: Final = "vllm.v1.metrics.stats.PrefixCacheStats"
LOGPROBS: Final = "vllm.v1.outputs.LogprobsLists"
RENDERER: Final = "vllm.renderers.base.BaseRenderer"
MEDIA_CONNECTOR: Final = "vllm.multimodal.media.MediaConnector"
MEDIA_IO: Final = "vllm.multimodal.media.MediaIO"
VIDEO_IO: Final = "vllm.multimodal.media.VideoMediaIO"
VIDEO_LOADER: Final = "vllm.multimodal.video.VideoLoader"


class Handle(NamedTuple):
    """An expression of ours that holds an object of vLLM."""

    module: str
    """Our module under proxy/engines/."""
    expression: str
    name: str
    """The object's class in vLLM."""
    function: str | None = None
    """The one function in which it means that; None: in the whole module."""


HANDLES: Final = (
    Handle("embedded", "AsyncEngineArgs", ENGINE_ARGS),
    Handle("embedded", "args", ENGINE_ARGS),
    Handle("embedded", "AsyncLLMEngine", ASYNC_LLM),
    Handle("embedded", "self._engine", ASYNC_LLM),
    Handle("embedded", "engine", ASYNC_LLM),
    Handle("embedded", "collector", COLLECTOR),
    Handle("embedded", "output", REQUEST_OUTPUT, "_read"),
    Handle("embedded", "EngineCoreEventType", EVENT_TYPE),
    Handle("embedded", "VllmFinish", FINISH_REASON),
    Handle("embedded", "RequestOutputKind", "vllm.sampling_params.RequestOutputKind"),
    Handle("embedded", "config", VLLM_CONFIG, "_describe"),
    Handle("embedded", "config", VLLM_CONFIG, "_cache_figures"),
    Handle("embedded", "config.parallel_config", PARALLEL_CONFIG),
    Handle("embedded", "config.device_config", DEVICE_CONFIG),
    Handle("embedded", "cache", CACHE_CONFIG),
    Handle("embedded", "model", MODEL_CONFIG),
    Handle("embedded", "scheduler", SCHEDULER_CONFIG, "_describe"),
    Handle("embedded", "iteration", ITERATION_STATS),
    Handle("embedded", "inputs", "vllm.v1.engine.input_processor.InputProcessor"),
    Handle("embedded", "self._engine.vllm_config.model_config", MODEL_CONFIG),
    Handle("embedded", "config", VLLM_CONFIG, "_check_shareable"),
    Handle("embedded", "parallel", PARALLEL_CONFIG),
    Handle("embedded", "media", "vllm.config.MultiModalConfig", "_check_shareable"),
    Handle("embedded", "Executor", "vllm.v1.executor.Executor"),
    Handle("embedded", "UsageContext", "vllm.usage.usage_lib.UsageContext"),
    Handle("embedded", "addresses", f"{ENGINE_UTILS}.EngineZmqAddresses"),
    Handle("embedded", "self._manager", f"{ENGINE_UTILS}.CoreEngineProcManager"),
    Handle("embedded", "self._coordinator", "vllm.v1.engine.coordinator.DPCoordinator"),
    Handle("embedded", "coordinator", "vllm.v1.engine.coordinator.DPCoordinator"),
    Handle("embedded_openai", "engine", ASYNC_LLM),
    Handle("media_prompt", "engine", ASYNC_LLM),
    Handle("media_prompt", "engine.vllm_config", VLLM_CONFIG),
    Handle("media_prompt", "self._model", MODEL_CONFIG),
    Handle("media_prompt", "self._model.multimodal_config", "vllm.config.MultiModalConfig"),
    Handle("media_prompt", "self._renderer", RENDERER),
    Handle("media_prompt", "chat_tokens", "vllm.renderers.params.TokenizeParams"),
    Handle("media_prompt", "processing", "vllm.multimodal.processing.BaseProcessingInfo"),
    Handle("media_prompt", "parser", "vllm.multimodal.parse.MultiModalDataParser"),
    Handle("media_prompt", "resampler", "vllm.multimodal.audio.AudioResampler"),
    Handle("media_prompt", "tools.registry", "vllm.utils.registry.ExtensionManager"),
    Handle("media_prompt", "components", "vllm.renderers.inputs.preprocess.PromptComponents"),
    Handle("media_prompt", "loader", MEDIA_IO),
    Handle("frame_limit", "loader", VIDEO_IO),
    Handle("frame_limit", "super()", VIDEO_LOADER),
    Handle("token_tap", "processor", OUTPUT_PROCESSOR),
    Handle("token_tap", "state", REQUEST_STATE),
    Handle("step_statistics", "iteration", ITERATION_STATS),
    Handle("step_statistics", "state", REQUEST_STATE),
    Handle("step_statistics", "stats", REQUEST_STATS),
    Handle("step_statistics", "output", CORE_OUTPUT),
    Handle("embedded", "processor", OUTPUT_PROCESSOR),
    Handle("embedded", "self._engine.logger_manager", STAT_LOGGERS),
    Handle("token_tap", "StepOutput", CORE_OUTPUT),
    Handle("token_tap", "StepEvent", CORE_EVENT),
    Handle("token_tap", "lists", LOGPROBS),
    Handle("figures", "SchedulerReport", SCHEDULER_STATS),
    Handle("figures", "PrefixCacheReport", PREFIX_CACHE_STATS),
    Handle("collector", "output", REQUEST_OUTPUT),
    Handle("collector", "completion", COMPLETION_OUTPUT),
    Handle("collector", "stamps", REQUEST_STATS),
)

PASSED_ON: Final = frozenset(
    {
        # Compared or stored, never looked into.
        "finish_reason",
        "scheduler_stats",
        "iteration_stats",
        "mm_cache_stats",
        "vllm_config",
        "type",
        "tokenizer",
        "media_io",
        # A pair, or what has it as its `media`.
        "loaded",
    }
)
"""Names annotated `Any` that hold something of vLLM whose attributes we do not use."""


class Override(NamedTuple):
    """A method of ours that vLLM calls in place of its own."""

    module: str
    function: str
    name: str
    method: str


OVERRIDES: Final = (
    Override("embedded", "_StepListener.record", STAT_LOGGER, "record"),
    Override("embedded", "_StepListener.__init__", STAT_LOGGER, "__init__"),
    Override("token_tap", "TokenTap._process_outputs", OUTPUT_PROCESSOR, "process_outputs"),
    Override("token_tap", "TokenTap._propagate_error", OUTPUT_PROCESSOR, "propagate_error"),
    Override("embedded", "_discard", COLLECTOR, "put"),
    Override(
        "media_prompt", "make_connector.Connector.load_from_url", MEDIA_CONNECTOR, "load_from_url"
    ),
    Override(
        "media_prompt",
        "make_connector.Connector.load_from_url_async",
        MEDIA_CONNECTOR,
        "load_from_url_async",
    ),
    Override(
        "frame_limit",
        "limit_frames.Limited.compute_frames_index_to_sample",
        VIDEO_LOADER,
        "compute_frames_index_to_sample",
    ),
)

OPTIONAL: Final = {
    "vllm.exceptions.GracefulHTTPError": "admission control, from 0.32 on",
    "vllm.exceptions.VLLMClientError": "the parent of refusals, from 0.32 on",
    "vllm.v1.engine.utils.CoreEngineLaunch": "what launching engines gives, from 0.32 on",
}
"""What only some versions have; our code asks for it with `getattr` and a default."""

IMPORTED: Final = (
    "vllm.SamplingParams",
    "vllm.inputs.tokens_input",
    "vllm.AsyncEngineArgs",
    "vllm.AsyncLLMEngine",
    "vllm.sampling_params.RequestOutputKind",
    "vllm.utils.argparse_utils.FlexibleArgumentParser",
    "vllm.v1.engine.exceptions.EngineDeadError",
    "vllm.v1.engine.utils.EngineZmqAddresses",
    "vllm.v1.engine.utils.launch_core_engines",
    "vllm.v1.executor.Executor",
    "vllm.usage.usage_lib.UsageContext",
    "vllm.utils.network_utils.get_open_zmq_ipc_path",
    "vllm.v1.metrics.loggers.StatLoggerBase",
    "vllm.v1.metrics.stats.IterationStats",
    "vllm.v1.metrics.stats.RequestStateStats",
    "vllm.v1.engine.EngineCoreEventType",
    "vllm.v1.engine.FinishReason",
    "vllm.exceptions.VLLMValidationError",
    "vllm.model_executor.model_loader.get_model_cls",
    "vllm.multimodal.media.MEDIA_CONNECTOR_REGISTRY",
    "vllm.multimodal.media.MediaConnector",
    "vllm.renderers.inputs.preprocess.extract_prompt_components",
    "vllm.renderers.params.ChatParams",
    "vllm.transformers_utils.processor.get_video_processor_cls_name",
    "vllm.tool_parsers.ToolParserManager",
)
"""What our code imports by name: the test finds them in the source and compares."""

IMPORTERS: Final = ("embedded", "embedded_openai")
"""Our modules that import vLLM."""

_NEW: Final = "vllm.entrypoints.launchers"
_OLD: Final = "vllm.entrypoints.openai"
MOVED: Final = {
    "build_app": (f"{_NEW}.app.build_app", f"{_OLD}.api_server.build_app"),
    "init_app_state": (
        f"{_NEW}.api_server.app_state.init_app_state",
        f"{_OLD}.api_server.init_app_state",
    ),
    "BaseFrontendArgs": (
        f"{_NEW}.cli_args.BaseFrontendArgs",
        f"{_OLD}.cli_args.BaseFrontendArgs",
    ),
    "FrontendArgs": (f"{_NEW}.cli_args.FrontendArgs", f"{_OLD}.cli_args.FrontendArgs"),
    "validate_parsed_serve_args": (
        f"{_NEW}.cli_args.validate_parsed_serve_args",
        f"{_OLD}.cli_args.validate_parsed_serve_args",
    ),
}
"""What lies elsewhere in the newer versions: embedded_openai.py takes it from where it is."""

_MOVED: Final = tuple(place for places in MOVED.values() for place in places)
NAMES: Final = frozenset({*IMPORTED, *OPTIONAL, *_MOVED, *(handle.name for handle in HANDLES)})
"""Everything that is recorded from a vLLM."""
