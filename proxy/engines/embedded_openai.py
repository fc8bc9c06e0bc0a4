"""vLLM's own OpenAI application on the engine that runs in this process.

Beside `embedded` the only module that imports vllm. The application is built as
vLLM's server builds it and gets the same `AsyncLLM`: no second engine, no second
copy of the weights. Where it lies in vLLM differs between the versions.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
from argparse import Namespace
from collections.abc import Mapping
from types import ModuleType, SimpleNamespace
from typing import Any, Final

from vllm import AsyncEngineArgs
from vllm.tool_parsers import ToolParserManager
from vllm.utils.argparse_utils import FlexibleArgumentParser

from proxy.engines.asgi import AsgiApi
from proxy.settings import SettingsError
from proxy.threads import in_thread

log = logging.getLogger(__name__)

_NEW_HOME: Final = "vllm.entrypoints.launchers"
_OLD_HOME: Final = "vllm.entrypoints.openai"
_IS_NEW: Final = importlib.util.find_spec(_NEW_HOME) is not None
_ARGUMENTS: Final = f"{_NEW_HOME if _IS_NEW else _OLD_HOME}.cli_args"
_APPLICATION: Final = f"{_NEW_HOME}.app" if _IS_NEW else f"{_OLD_HOME}.api_server"
_STATE: Final = f"{_NEW_HOME}.api_server.app_state" if _IS_NEW else f"{_OLD_HOME}.api_server"


def _arguments() -> ModuleType:
    return importlib.import_module(_ARGUMENTS)


def add_openai_options(parser: FlexibleArgumentParser) -> None:
    """vLLM's options of its OpenAI API, such as --chat-template; not those of its listener."""
    _arguments().BaseFrontendArgs.add_cli_args(parser)


def openai_options(parsed: Namespace) -> dict[str, Any]:
    """Those options in a parsed command line, if they differ from their defaults."""
    defaults = vars(_arguments().BaseFrontendArgs())
    given = {name: getattr(parsed, name, default) for name, default in defaults.items()}
    return {name: value for name, value in given.items() if value != defaults[name]}


async def openai_api(
    engine: Any, args: AsyncEngineArgs, names: tuple[str, ...], options: Mapping[str, Any]
) -> AsgiApi:
    """The application, ready to be asked. SettingsError when vLLM refuses the options."""
    namespace = Namespace(
        **{
            **vars(_arguments().FrontendArgs()),
            **vars(args),
            **options,
            "served_model_name": list(names),
            "disable_fastapi_docs": True,
        }
    )
    try:
        _arguments().validate_parsed_serve_args(namespace)
        if namespace.tool_parser_plugin:
            ToolParserManager.import_tool_parser(namespace.tool_parser_plugin)
    except (TypeError, ValueError) as error:
        raise SettingsError(f"vLLM's OpenAI API: {error}") from None
    build_app, init_app_state = await in_thread(_builders)
    tasks = await engine.get_supported_tasks()
    app = build_app(namespace, tasks, engine.model_config)
    await init_app_state(engine, app.state, namespace, tasks)
    # What vLLM's error handlers look for; the gateway itself notices a dead engine.
    app.state.server = SimpleNamespace(should_exit=False)
    return AsgiApi(app)


def _builders() -> tuple[Any, Any]:
    """Importing them takes seconds."""
    build = importlib.import_module(_APPLICATION).build_app
    return build, importlib.import_module(_STATE).init_app_state
