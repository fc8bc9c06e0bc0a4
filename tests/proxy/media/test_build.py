"""The settings for media: where they come from, and what is refused at the start."""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import pytest

from proxy.media.build import host_policy, missing_directory
from proxy.settings import MEDIA_DOMAINS_ENV, Settings, SettingsError, load_settings


@pytest.fixture(autouse=True)
def _unset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(MEDIA_DOMAINS_ENV, raising=False)


def hosts(cli: Mapping[str, Any], config: Path | None = None) -> frozenset[str] | None:
    settings, _ = load_settings(cli, None if config is None else str(config))
    return host_policy(settings).hosts


def test_the_pages_variable_is_read_as_the_page_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(MEDIA_DOMAINS_ENV, "upload.xxxmedia.org, Cxxx.xxx.com,93.184.216.34,")
    expected = {"upload.xxxmedia.org", "cxxx.xxx.com", "93.184.216.34"}
    assert hosts({}) == expected
    assert hosts({"contract": "server"}) == expected


def test_an_empty_variable_is_as_if_unset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(MEDIA_DOMAINS_ENV, "")
    assert hosts({}) == frozenset()
    with pytest.raises(SettingsError):
        load_settings({"contract": "server"}, None)


def test_the_order_of_sources(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text('allowed_media_domains = "file.example"\n')
    assert hosts({}, config) == {"file.example"}
    monkeypatch.setenv(MEDIA_DOMAINS_ENV, "page.example")
    assert hosts({}, config) == {"page.example"}
    monkeypatch.setenv("MINDIE_GATEWAY_ALLOWED_MEDIA_DOMAINS", "own.example")
    assert hosts({}, config) == {"own.example"}
    assert hosts({"allowed_media_domains": "line.example"}, config) == {"line.example"}


def test_unset_means_nothing_in_the_documented_contract() -> None:
    assert hosts({}) == frozenset()


def test_unset_means_everything_in_the_server_contract_and_has_to_be_said() -> None:
    with pytest.raises(SettingsError, match=r"ALLOWED_MEDIA_DOMAINS_ENV.*--media-from-any-host"):
        load_settings({"contract": "server"}, None)
    assert hosts({"contract": "server", "media_from_any_host": True}) is None


@pytest.mark.parametrize(
    "cli",
    [
        {"media_from_any_host": True},
        {"contract": "server", "media_from_any_host": True, "allowed_media_domains": "a.example"},
    ],
)
def test_any_host_is_not_said_in_vain(
    cli: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    assert hosts(cli) is not None
    assert "media_from_any_host has no effect" in caplog.text


def test_private_networks_are_checked_at_the_start() -> None:
    settings = Settings(media_private_networks="10.1.0.0/16, fd00::/64")
    expected = (ip_network("10.1.0.0/16"), ip_network("fd00::/64"))
    assert host_policy(settings).networks == expected
    with pytest.raises(SettingsError, match="media_private_networks"):
        load_settings({"media_private_networks": "10.1.2.3/16"}, None)


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("allowed_media_domains", "a.example,*.example.com", '"*.example.com" is no exact name'),
        ("allowed_media_domains", "https://a.example", '"https://a.example" is no exact name'),
        ("allowed_media_domains", "a.example:8080", '"a.example:8080" is no exact name'),
        ("allowed_media_domains", "a.example b.example", "is no exact name"),
        ("allowed_media_domains", "a.example/media", "is no exact name"),
        ("media_private_networks", "0.0.0.0/0", "0.0.0.0/0 holds public addresses"),
        ("media_private_networks", "10.0.0.0/8,::/0", "::/0 holds public addresses"),
        ("media_private_networks", "media.internal", "media.internal"),
        ("media_root", "media", "must be an absolute path"),
        ("media_root", "./media", "must be an absolute path"),
        ("media_root", "", "must be an absolute path"),
    ],
)
def test_what_would_not_work_is_refused_at_the_start(name: str, value: str, reason: str) -> None:
    with pytest.raises(SettingsError, match=name) as caught:
        load_settings({name: value}, None)
    assert reason in str(caught.value)


def test_the_pages_variable_is_checked_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(MEDIA_DOMAINS_ENV, "*.example.com")
    with pytest.raises(SettingsError, match="allowed_media_domains"):
        load_settings({}, None)


@pytest.mark.parametrize("name", ["media_root", "media_spool_dir"])
def test_a_directory_that_the_operator_names_must_be_there(name: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert missing_directory(Settings(**{name: str(tmp_path)})) is None
    for path in (tmp_path / "nowhere", tmp_path / "file"):
        said = missing_directory(Settings(**{name: str(path)}))
        assert said == f"{name}: {path} is no directory that the gateway can use"


def test_the_default_directories_may_be_missing(tmp_path: Path) -> None:
    assert missing_directory(Settings()) is None


def test_an_inner_address_on_the_list_is_warned_about(caplog: pytest.LogCaptureFixture) -> None:
    listed = "a.example,8.8.8.8,10.1.2.3,::1,10.2.0.1"
    host_policy(Settings(allowed_media_domains=listed, media_private_networks="10.2.0.0/16"))
    warned = [record.args[0] for record in caplog.records if isinstance(record.args, tuple)]
    assert warned == ["10.1.2.3", "::1"]
