"""Every setting of the gateway, once: command line > environment > file > default.

The fields below are the documentation: their descriptions feed `--help` and are
checked against docs/settings.md. Unknown names are refused wherever they stand.
"""

from __future__ import annotations

import ipaddress
import json
import os
import socket
import tomllib
from collections.abc import Mapping
from datetime import date
from pathlib import Path
from typing import Any, Final, Literal, Self
from urllib.parse import urlsplit

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    field_validator,
    model_validator,
)

from proxy.logs import LogFormat
from translators.contract import CONTRACTS, Contract, ContractName
from translators.media_urls import parse_hosts, parse_networks
from translators.triton_stream import FrameStyle

ENV_PREFIX: Final = "MINDIE_GATEWAY_"
CONFIG_FILE_ENV: Final = ENV_PREFIX + "CONFIG_FILE"
MEDIA_DOMAINS_ENV: Final = "ALLOWED_MEDIA_DOMAINS_ENV"
VLLM_TABLE: Final = "vllm"
NO_VLLM: Final = (
    "vLLM is not installed here: install vllm-mindie-gateway with one of the extras "
    "cpu, cuda or ascend"
)
_NUMERIC: Final = socket.AI_NUMERICHOST | socket.AI_PASSIVE
_ONLY_WITH_UPSTREAM: Final = (
    "upstream_api_key",
    "upstream_max_num_seqs",
    "upstream_generation_config",
)
_AT_LEAST_ONE_EACH: Final = (
    "max_requests",
    "max_running",
    "max_connections",
    "media_concurrency",
)
"""Limits that the workers share out, so that none is left with nothing."""
_SECRET_WORDS: Final = ("token", "key", "password", "secret")


class SettingsError(Exception):
    """Settings that cannot be honoured; the message is for the operator."""


class Settings(BaseModel):
    """The gateway's own settings. vLLM's engine options are not among them."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    host: str = Field("127.0.0.1", description="Address to listen on.")
    port: int = Field(1025, ge=0, le=65535, description="Port to listen on; 0 picks a free one.")
    management_host: str | None = Field(
        None, description="Address of the management routes; unset: that of `host`."
    )
    management_port: int | None = Field(
        None,
        ge=0,
        le=65535,
        description="Port of the management routes (MindIE's default: 1026); unset: the main port.",
    )
    metrics_host: str | None = Field(
        None, description="Address of /metrics; unset: that of `host`."
    )
    metrics_port: int | None = Field(
        None,
        ge=0,
        le=65535,
        description="Port of /metrics (MindIE's default: 1027); unset: the main port.",
    )
    allow_plain_http: bool = Field(
        False, description="Listen on all addresses without TLS, because a proxy in front has it."
    )
    tls_cert_file: Path | None = Field(
        None, description="PEM certificate chain: serve HTTPS. Read again when it changes."
    )
    tls_key_file: Path | None = Field(
        None, description="PEM private key; unset: it stands in the certificate's file."
    )
    tls_key_password: SecretStr | None = Field(
        None, description="Password of the private key; better as environment variable."
    )
    tls_client_ca_file: Path | None = Field(
        None, description="PEM authorities: only clients with a certificate by these get in."
    )
    tls_crl_file: Path | None = Field(
        None, description="PEM revocation lists of those authorities."
    )
    tls_min_version: Literal["1.2", "1.3"] = Field("1.2", description="Oldest TLS version.")
    api_keys_file: Path | None = Field(
        None,
        description="File of the API keys that open the service routes: `NAME sha256:HEX` a line. "
        "Read again when it changes.",
    )
    api_keys: SecretStr | None = Field(
        None, description="The same, between commas, for an environment variable."
    )
    management_keys_file: Path | None = Field(
        None, description="Keys for metrics and management routes; unset: the API keys open them."
    )
    management_keys: SecretStr | None = Field(
        None, description="The same, between commas, for an environment variable."
    )
    workers: int = Field(
        1,
        ge=1,
        le=64,
        description="Processes that share the addresses and the engine, each with its part of "
        "every limit.",
    )
    upstream: tuple[str, ...] = Field(
        (),
        description="URL of a vLLM server to stand in front of, instead of an engine in this "
        "process. Several servers of one model share the work: give the option several times, or "
        "a comma list in the environment.",
    )
    upstream_api_key: SecretStr | None = Field(
        None, description="Key that the upstreams want (vLLM's --api-key)."
    )
    upstream_connect_timeout: float = Field(
        5.0, gt=0, description="Seconds to connect to an upstream."
    )
    upstream_check_period: float = Field(
        1.0, gt=0, description="Seconds between looks at an upstream's health and load."
    )
    upstream_max_num_seqs: int | None = Field(
        None,
        ge=1,
        description="Sequences that each upstream runs at once (its --max-num-seqs), which it "
        "does not tell; unset: 256.",
    )
    upstream_generation_config: Path | None = Field(
        None,
        description="The model's generation_config.json, or its directory, where an upstream does "
        "not tell its defaults; unset: what a client leaves out is left to the upstream.",
    )
    upstream_priority: bool = Field(
        True, description="Pass priorities on; an upstream that schedules by them heeds them."
    )
    openai_api: bool = Field(
        True, description="Serve the engine's own OpenAI API under /v1, beside the legacy routes."
    )
    deprecation: date | Literal["off"] = Field(
        date(2026, 12, 1),
        description="Day from which on the legacy routes are deprecated, told in the header "
        "Deprecation of their answers; off: neither this header nor the next two.",
    )
    sunset: date | None = Field(
        None, description="Day on which they will end, told in the header Sunset."
    )
    deprecation_link: str | None = Field(
        None,
        pattern="^https?://[!#-;=?-~]+$",
        description="URL of a page for those who have to move, told in a header Link.",
    )
    contract: ContractName = Field(
        "documented", description="Which contract to keep: the API page's or the real server's."
    )
    full_text: bool = Field(
        False, description="Each frame holds all text so far (MindIE's fullTextEnabled)."
    )
    data_space: bool = Field(False, description="Write `data: ` with a space in each frame.")
    brace_escape: bool = Field(
        True, description="Write `{` as \\u007b in texts with both braces; Huawei's SDK needs it."
    )
    triton_dialect: bool = Field(
        True, description="Understand the top-level fields of Triton and TensorRT-LLM clients."
    )
    body_limit: int = Field(
        40 * 1024 * 1024, ge=1024, description="Largest request body in bytes; more is 413."
    )
    body_memory: int = Field(
        512 * 1024 * 1024,
        ge=1024,
        description="Bytes of all request bodies together; beyond them 503.",
    )
    max_input_token_len: int | None = Field(
        None, ge=1, description="Most prompt tokens; unset: what the model's context allows."
    )
    max_iter_times: int | None = Field(
        None, ge=1, description="Most new tokens of any request; unset: the room in the context."
    )
    max_requests: int | None = Field(
        None,
        ge=1,
        description="Requests at once, beyond which 503; unset: 4 times the engine's max_num_seqs.",
    )
    max_running: int | None = Field(
        None,
        ge=1,
        description="Of these, requests that the engine has at once; the others wait in the "
        "gateway, the most urgent first; unset: 2 times the engine's max_num_seqs.",
    )
    token_timeout: float = Field(
        600.0, gt=0, description="Seconds any request waits for its next token at most."
    )
    e2e_timeout: float = Field(
        3600.0, gt=0, description="Seconds any request may take from its start to its end."
    )
    write_timeout: float = Field(
        60.0,
        gt=0,
        description="Seconds a client has to read what waits for it, up to 128 KiB, "
        "before it is dropped.",
    )
    head_timeout: float = Field(
        15.0, gt=0, description="Seconds a client may take to send a request's head."
    )
    keepalive_timeout: float = Field(
        75.0, gt=0, description="Seconds an idle connection is kept; more than a proxy in front."
    )
    max_connections: int = Field(
        4096,
        ge=1,
        description="Connections at once; beyond them the one that has waited longest for its "
        "client is closed.",
    )
    body_timeout: float = Field(
        60.0, gt=0, description="Seconds a client may take to send its request body."
    )
    progress_timeout: float = Field(
        300.0,
        ge=0,
        description="Seconds without a token anywhere, while the engine has work, after which "
        "readiness says no; 0 never looks. Longer than the longest prefill.",
    )
    pre_stop_wait: float = Field(
        0.0,
        ge=0,
        description="Seconds after SIGTERM in which readiness says no but work is still taken, "
        "until load balancers have noticed.",
    )
    stop_service: bool = Field(
        False,
        description="Serve GET /stopService on the management listener: it stops the gateway as "
        "SIGTERM does. Needs management_port.",
    )
    drain_timeout: float = Field(
        30.0, ge=0, description="Seconds that running streams get to finish after SIGTERM."
    )
    stay_after_engine_death: bool = Field(
        False, description="Keep answering 503 when the engine has died instead of ending."
    )
    allowed_media_domains: str | None = Field(
        None,
        description="Hosts that media may be fetched from: a comma list of exact names. Also read "
        "from ALLOWED_MEDIA_DOMAINS_ENV, after the variable in the table. Unset: none.",
    )
    media_from_any_host: bool = Field(
        False,
        description="With the server contract and no list of hosts: fetch media from every public "
        "host, as the real server does. Without it that combination does not start.",
    )
    media_private_networks: str = Field(
        "",
        description="Networks (comma list, such as 10.1.0.0/16) whose addresses media hosts may "
        "have although they are not public.",
    )
    media_proxy_from_env: bool = Field(
        False, description="Fetch media through the proxy that http_proxy and https_proxy name."
    )
    media_root: str = Field(
        "/data/multimodal_inputs/", description="Directory that local media must lie in."
    )
    media_spool_dir: str | None = Field(
        None, description="Directory for media in transit; unset: the system's temporary one."
    )
    media_memory_limit: int = Field(
        1024 * 1024, ge=0, description="Bytes of one medium held in memory; more goes to disk."
    )
    media_concurrency: int = Field(
        8, ge=1, description="Requests whose media are fetched and prepared at once; others wait."
    )
    media_connect_timeout: float = Field(
        5.0, gt=0, description="Seconds to resolve a media host, and to connect to it."
    )
    media_read_timeout: float = Field(
        10.0, gt=0, description="Seconds that a media host may pause."
    )
    media_total_timeout: float = Field(
        60.0, gt=0, description="Seconds for all media of a request, waiting included."
    )
    media_max_pixels: int = Field(
        8192 * 8192,
        ge=1,
        description="Pixels of an image, or of a frame of a video; a request has 4 times as many.",
    )
    media_max_seconds: float = Field(600.0, gt=0, description="Seconds of sound of an audio file.")
    media_prompt: Literal["auto", "chat", "plain"] = Field(
        "auto",
        description="How text and media become a prompt: chat, one user message by the model's "
        "chat template; plain, text and the model's placeholders in order; auto, chat when the "
        "model has a template.",
    )
    token_path: Literal["direct", "collector"] = Field(
        "direct",
        description="How tokens leave vLLM: each with its own times, or from vLLM's collectors, "
        "which may merge some.",
    )
    mindie_metrics: bool = Field(
        False, description="Show MindIE's own metric names on /metrics too, for old dashboards."
    )
    log_level: str = Field(
        "info", pattern="^(debug|info|warning|error)$", description="debug, info, warning, error."
    )
    trace_endpoint: str | None = Field(
        None,
        description="OTLP/HTTP address for OpenTelemetry traces, such as "
        "http://127.0.0.1:4318/v1/traces; needs the extra `otel`.",
    )
    log_format: LogFormat = Field("console", description="Log lines for people, or JSON.")

    @field_validator("upstream", mode="before")
    @classmethod
    def _listed(cls, value: Any) -> Any:
        items = [value] if isinstance(value, str) else value
        if not isinstance(items, list | tuple) or not all(isinstance(one, str) for one in items):
            raise ValueError("must be one URL or a list of URLs")
        return tuple(url.strip() for item in items for url in item.split(",") if url.strip())

    @field_validator("upstream")
    @classmethod
    def _server_urls(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for url in value:
            parts = urlsplit(url)
            extra = parts.username or parts.password or parts.query or parts.fragment
            # `port` raises for what is no port.
            if parts.scheme not in ("http", "https") or not parts.hostname or parts.port == 0:
                raise ValueError(f"{url} is no URL such as http://127.0.0.1:8000")
            if extra:
                raise ValueError("an upstream's URL has no user, query or fragment")
        if len(set(value)) < len(value):
            raise ValueError("an upstream is named twice")
        return value

    @field_validator("allowed_media_domains")
    @classmethod
    def _hosts(cls, value: str | None) -> str | None:
        parse_hosts(value or "")
        return value

    @field_validator("media_private_networks")
    @classmethod
    def _networks(cls, value: str) -> str:
        parse_networks(value)
        return value

    @field_validator("media_root")
    @classmethod
    def _absolute(cls, value: str) -> str:
        if not value.startswith("/"):
            raise ValueError("must be an absolute path: requests name their files by it")
        return value

    @model_validator(mode="after")
    def _guarded(self) -> Self:
        """Refuse what would be less safe than it looks."""
        if self.tls_cert_file is None:
            _refuse_without("tls_cert_file", self, "tls_key_file", "tls_client_ca_file")
            if not self.allow_plain_http:
                for host in (self.host, self.management_host, self.metrics_host):
                    _refuse_everywhere(host)
        if self.management_port is None:
            _refuse_without("management_port", self, "management_host")
        if self.metrics_port is None:
            _refuse_without("metrics_port", self, "metrics_host")
        shared = self.management_port is None or 0 != self.management_port == self.port
        if self.stop_service and shared:
            raise ValueError("stop_service needs a management_port of its own")
        if self.tls_client_ca_file is None:
            _refuse_without("tls_client_ca_file", self, "tls_crl_file")
        return self

    @model_validator(mode="after")
    def _shared_out(self) -> Self:
        """Refuse limits of which a worker's part would be too small."""
        if self.body_memory // self.workers < self.body_limit:
            raise ValueError("body_memory holds no body of body_limit bytes for each of workers")
        for name in _AT_LEAST_ONE_EACH:
            if self.workers > (getattr(self, name) or self.workers):
                raise ValueError(f"{name} must be at least the number of workers")
        return self

    @model_validator(mode="after")
    def _effective(self) -> Self:
        """Refuse what would have no effect."""
        if not self.upstream:
            _refuse_without("upstream", self, *_ONLY_WITH_UPSTREAM)
        if self.deprecation == "off":
            _refuse_without("deprecation", self, "sunset", "deprecation_link")
        elif self.sunset is not None and self.sunset < self.deprecation:
            raise ValueError("sunset must not come before deprecation")
        return self

    @property
    def rules(self) -> Contract:
        """The contract in force."""
        return CONTRACTS[self.contract]

    def frame_style(self, *, accumulate: bool) -> FrameStyle:
        """How frames look; `accumulate` is the request's own wish for the text so far."""
        return FrameStyle(
            full_text=self.full_text or accumulate,
            data_space=self.data_space,
            brace_escape=self.brace_escape,
        )


def _refuse_without(needed: str, settings: Settings, *names: str) -> None:
    for name in names:
        if getattr(settings, name) is not None:
            raise ValueError(f"{name} has no effect without {needed}")


def _refuse_everywhere(host: str | None) -> None:
    if host is not None and listens_everywhere(host):
        raise ValueError(
            f"host {host} is every address, without TLS: "
            "set tls_cert_file, or allow_plain_http if a proxy in front has TLS"
        )


def listens_everywhere(host: str) -> bool:
    """Whether `host`, in whatever spelling, means all addresses of the machine."""
    try:
        found = socket.getaddrinfo(host or None, 0, flags=_NUMERIC)
    except (OSError, UnicodeError):
        return False
    addresses = (ipaddress.ip_address(str(item[4][0]).partition("%")[0]) for item in found)
    return any(
        address.is_unspecified
        or (isinstance(address, ipaddress.IPv6Address) and _mapped(address).is_unspecified)
        for address in addresses
    )


def _mapped(address: ipaddress.IPv6Address) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    return address.ipv4_mapped or address


def load_settings(
    cli: Mapping[str, Any], config_file: str | None
) -> tuple[Settings, dict[str, Any]]:
    """The effective settings and the config file's table of vLLM options.

    `cli` holds what was given on the command line, by field name. Raises
    SettingsError naming every setting that is wrong or unknown.
    """
    _refuse_unknown_environment()
    from_file = _read_file(config_file) if config_file else {}
    vllm = from_file.pop(VLLM_TABLE, {})
    unknown = sorted(set(from_file) - set(Settings.model_fields))
    if unknown:
        raise SettingsError(f"unknown settings in the config file: {', '.join(unknown)}")
    if not isinstance(vllm, dict):
        raise SettingsError(f"[{VLLM_TABLE}] in the config file must be a table")
    environment = _from_environment()
    try:
        settings = Settings(**{**from_file, **environment, **cli})
    except ValidationError as error:
        raise SettingsError(_readable(error)) from None
    _refuse_open_media(settings)
    return settings, vllm


def _refuse_open_media(settings: Settings) -> None:
    """Contract §8: media from every host only when the operator says so in as many words."""
    unset = settings.allowed_media_domains is None
    if settings.rules.media_open_by_default and unset and not settings.media_from_any_host:
        raise SettingsError(
            f"the {settings.contract} contract allows media from every host while "
            f"{MEDIA_DOMAINS_ENV} is unset: set it to the hosts you trust, or say "
            "--media-from-any-host if you mean every host"
        )


def _from_environment() -> dict[str, str]:
    # The page's own variable stands first: ours comes after it and wins.
    names = {MEDIA_DOMAINS_ENV: "allowed_media_domains"}
    names |= {ENV_PREFIX + name.upper(): name for name in Settings.model_fields}
    return {name: os.environ[key] for key, name in names.items() if os.environ.get(key)}


def _refuse_unknown_environment() -> None:
    known = {ENV_PREFIX + name.upper() for name in Settings.model_fields} | {CONFIG_FILE_ENV}
    unknown = sorted(key for key in os.environ if key.startswith(ENV_PREFIX) and key not in known)
    if unknown:
        raise SettingsError(f"unknown environment variables: {', '.join(unknown)}")


def _read_file(path: str) -> dict[str, Any]:
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"cannot read the config file: {error.strerror}: {path}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"the config file {path} is not TOML: {error}") from None


def _readable(error: ValidationError) -> str:
    lines = (
        f"{'.'.join(map(str, item['loc'])) or 'settings'}: {item['msg']}"
        for item in error.errors(include_url=False)
    )
    return "; ".join(lines)


def vllm_flags(table: Mapping[str, Any]) -> list[str]:
    """The config file's [vllm] table as command-line flags of vLLM."""
    flags: list[str] = []
    for key, value in table.items():
        name = "--" + key.replace("_", "-")
        if value is True:
            flags.append(name)
        elif value is False:
            flags.append("--no-" + name.removeprefix("--"))
        elif isinstance(value, list):
            flags += [name, *map(_flag_value, value)]
        else:
            flags += [name, _flag_value(value)]
    return flags


def _flag_value(value: Any) -> str:
    # vLLM's options that hold a table take it as JSON.
    return json.dumps(value) if isinstance(value, dict) else str(value)


def hidden_secrets(flags: list[str]) -> list[str]:
    """vLLM flags for display: the values of what sounds like a secret are masked."""
    shown: list[str] = []
    masking = False
    for flag in flags:
        if flag.startswith("-"):
            name, has_value, _ = flag.partition("=")
            masking = _sounds_secret(name)
            shown.append(f"{name}=******" if masking and has_value else flag)
        else:
            shown.append("******" if masking else flag)
    return shown


def _sounds_secret(flag: str) -> bool:
    words = flag.strip("-").lower().replace("_", "-").split("-")
    return any(word in _SECRET_WORDS for word in words)
