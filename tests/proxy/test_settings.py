"""Where settings come from, which wins, and what is refused."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest

from proxy import settings as settings_module
from proxy.settings import (
    CONFIG_FILE_ENV,
    ENV_PREFIX,
    Settings,
    SettingsError,
    hidden_secrets,
    load_settings,
    vllm_flags,
)

SOURCES = Path(settings_module.__file__).resolve().parent
DOCS = SOURCES.parent / "docs" / "settings.md"


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    for name in list(os.environ):
        if name.startswith(ENV_PREFIX):
            monkeypatch.delenv(name)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A config file to write."""
    return tmp_path / "gateway.toml"


def test_each_source_comes_before_the_next(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file.write_text("port = 1\nbody_limit = 1111\ndrain_timeout = 1.5\n")
    monkeypatch.setenv("MINDIE_GATEWAY_PORT", "2")
    monkeypatch.setenv("MINDIE_GATEWAY_BODY_LIMIT", "2222")
    settings, _ = load_settings({"port": "3"}, str(file))
    assert settings.port == 3
    assert settings.body_limit == 2222
    assert settings.drain_timeout == 1.5
    assert settings.host == "127.0.0.1"


@pytest.mark.parametrize("name", Settings.model_fields)
def test_every_setting_is_an_environment_variable_and_a_key_of_the_file(
    name: str, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What one source takes the others take as well, and what it refuses they refuse."""
    value = "no number, no switch"
    taken = _taken(name, value)
    monkeypatch.setenv(ENV_PREFIX + name.upper(), value)
    if taken is None:
        with pytest.raises(SettingsError, match=name):
            load_settings({}, None)
    else:
        assert getattr(load_settings({}, None)[0], name) == taken
    monkeypatch.delenv(ENV_PREFIX + name.upper())
    file.write_text(f"{name} = [[1]]\n")
    with pytest.raises(SettingsError, match=name):
        load_settings({}, str(file))


def _taken(name: str, value: Any) -> Any:
    """What the setting becomes when the command line says `value`; None when it is refused."""
    try:
        return getattr(load_settings({name: value}, None)[0], name)
    except SettingsError:
        return None


def test_an_empty_variable_is_no_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINDIE_GATEWAY_PORT", "")
    assert load_settings({}, None)[0].port == 1025


def test_unknown_names_are_refused_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINDIE_GATEWAY_PROT", "1")
    with pytest.raises(SettingsError, match="MINDIE_GATEWAY_PROT"):
        load_settings({}, None)


def test_the_config_files_own_variable_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CONFIG_FILE_ENV, "somewhere")
    load_settings({}, None)


def test_unknown_names_are_refused_in_the_file(file: Path) -> None:
    file.write_text("prot = 1\nhots = 'a'\n")
    with pytest.raises(SettingsError, match="hots, prot"):
        load_settings({}, str(file))


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"port = ", "not TOML"),
        (b"\xff\xfe", "not TOML"),
        (b"vllm = 1", "must be a table"),
        (b"[port]\na = 1", "port"),
    ],
)
def test_a_file_that_makes_no_sense(file: Path, content: bytes, reason: str) -> None:
    file.write_bytes(content)
    with pytest.raises(SettingsError, match=reason):
        load_settings({}, str(file))


def test_a_file_that_cannot_be_read(file: Path, tmp_path: Path) -> None:
    for path in (file, tmp_path):
        with pytest.raises(SettingsError, match="cannot read the config file"):
            load_settings({}, str(path))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("port", value) for value in ("-1", "65536", "x", "1.5")),
        ("contract", "mindie"),
        ("full_text", "perhaps"),
        ("body_limit", "1023"),
        *((name, "0") for name in ("max_input_token_len", "max_iter_times", "max_requests")),
        *(
            (name, value)
            for name in ("token_timeout", "e2e_timeout", "write_timeout", "body_timeout")
            for value in ("0", "-1", "nan", "inf")
        ),
        *(("drain_timeout", value) for value in ("-1", "nan", "inf")),
        ("token_path", "shortest"),
        ("log_level", "loud"),
    ],
)
def test_values_out_of_range_are_refused_with_their_name(name: str, value: str) -> None:
    with pytest.raises(SettingsError, match=name):
        load_settings({name: value}, None)


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        *(
            (name, 2, f"{name} must be at least the number of workers")
            for name in ("max_requests", "max_running", "max_connections", "media_concurrency")
        ),
        ("body_memory", 3 * 41943040 - 1, "for each of workers"),
        ("workers", 0, "workers"),
        ("workers", 65, "workers"),
    ],
)
def test_no_worker_is_left_without_its_part(name: str, value: int, reason: str) -> None:
    with pytest.raises(SettingsError, match=reason):
        load_settings({"upstream": "http://h", "workers": 3, name: value}, None)


def test_no_limit_at_all_is_shared_out_as_well() -> None:
    settings, _ = load_settings({"upstream": "http://h", "workers": 3, "max_requests": 3}, None)
    assert settings.workers == 3


def test_all_faults_are_told_at_once() -> None:
    with pytest.raises(SettingsError, match=r"port: .*; contract: "):
        load_settings({"port": "x", "contract": "y"}, None)


def test_settings_do_not_change() -> None:
    settings, _ = load_settings({}, None)
    with pytest.raises(ValueError, match="frozen"):
        settings.port = 1


def test_every_setting_is_read_somewhere() -> None:
    """A setting that is accepted works: none is read nowhere."""
    read = {
        node.attr
        for path in SOURCES.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute)
        and _name(node.value) in ("settings", "self" if path.name == "settings.py" else "settings")
    }
    assert set(Settings.model_fields) <= read


def _name(node: ast.expr) -> str:
    """`settings` for `settings`, `self.settings`, `gateway.settings` and the like."""
    return node.attr if isinstance(node, ast.Attribute) else str(getattr(node, "id", ""))


def test_every_setting_says_what_it_does() -> None:
    for name, field in Settings.model_fields.items():
        assert field.description, name
        assert field.description.endswith("."), name


def test_the_config_file_of_the_documentation_is_valid(file: Path) -> None:
    _, _, rest = DOCS.read_text(encoding="utf-8").partition("```toml\n")
    file.write_text(rest.partition("```")[0])
    settings, vllm = load_settings({}, str(file))
    assert settings.contract == "server"
    assert vllm_flags(vllm) == [
        *("--max-model-len", "8192"),
        *("--served-model-name", "llama3-70b", "llama"),
    ]


def test_the_vllm_table_as_flags() -> None:
    table = {
        "max_model_len": 8192,
        "enforce_eager": True,
        "enable_prefix_caching": False,
        "gpu_memory_utilization": 0.5,
        "served_model_name": ["a", "b"],
        "hf_overrides": {"rope": {"factor": 2.0}},
        "dtype": "float32",
    }
    assert vllm_flags(table) == [
        *("--max-model-len", "8192"),
        "--enforce-eager",
        "--no-enable-prefix-caching",
        *("--gpu-memory-utilization", "0.5"),
        *("--served-model-name", "a", "b"),
        *("--hf-overrides", '{"rope": {"factor": 2.0}}'),
        *("--dtype", "float32"),
    ]


@pytest.mark.parametrize(
    ("flags", "shown"),
    [
        (["--hf-token", "abc"], ["--hf-token", "******"]),
        (["--hf-token=abc"], ["--hf-token=******"]),
        (["--api-key", "a", "b", "--dtype", "x"], ["--api-key", *["******"] * 2, "--dtype", "x"]),
        (["--hf_token", "abc"], ["--hf_token", "******"]),
        (["--hf-token", "--dtype", "x"], ["--hf-token", "--dtype", "x"]),
        (["--max-num-batched-tokens", "9"], ["--max-num-batched-tokens", "9"]),
        (["--PASSWORD=x"], ["--PASSWORD=******"]),
    ],
)
def test_secrets_among_vllm_flags_are_hidden(flags: list[str], shown: list[str]) -> None:
    assert hidden_secrets(flags) == shown
