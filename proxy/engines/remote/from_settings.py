"""The remote engine as the operator's settings want it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from proxy.engines.remote.engine import RemoteEngine, UpstreamOptions
from proxy.settings import Settings, SettingsError, hidden_secrets
from translators.sampling import ModelDefaults

_FILE: Final = "generation_config.json"


def remote_engine(settings: Settings, model: str | None, flags: list[str]) -> RemoteEngine:
    """The engine that stands for the upstreams of `settings`.

    Raises SettingsError when the command line also holds what belongs to a vLLM
    in this process, or when a file cannot be read.
    """
    strangers = [*([] if model is None else [model]), *hidden_secrets(flags)]
    if strangers:
        raise SettingsError(
            "with --upstream the model and vLLM's options belong to the upstream's own "
            f"command line: {' '.join(strangers)}"
        )
    if settings.media_prompt == "plain":
        raise SettingsError("with --upstream prompts with media go through the chat template only")
    key = settings.upstream_api_key
    return RemoteEngine(
        UpstreamOptions(
            urls=settings.upstream,
            api_key=None if key is None else key.get_secret_value(),
            connect_timeout=settings.upstream_connect_timeout,
            check_period=settings.upstream_check_period,
            max_num_seqs=settings.upstream_max_num_seqs,
            defaults=_generation_defaults(settings.upstream_generation_config),
            priority=settings.upstream_priority,
            openai=settings.openai_api,
        )
    )


def _generation_defaults(path: Path | None) -> ModelDefaults | None:
    if path is None:
        return None
    file = path / _FILE if path.is_dir() else path
    try:
        config = json.loads(file.read_bytes())
    except (OSError, ValueError) as error:
        raise SettingsError(f"cannot read {file}: {type(error).__name__}") from None
    if not isinstance(config, dict):
        raise SettingsError(f"{file} holds no JSON object")
    return ModelDefaults.from_config(config)
