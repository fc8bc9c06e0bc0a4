"""Secrets never come out again: not in `settings`, not in a refusal, not in a log."""

from __future__ import annotations

import pytest

from proxy.cli import main

SECRETS = ("hunter2", "c0ffee" * 10 + "c0ff")


def test_settings_shows_no_secret(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINDIE_GATEWAY_MANAGEMENT_KEYS", f"m sha256:{SECRETS[1]}")
    arguments = ["settings", "m", "--tls-cert-file=c.pem", f"--tls-key-password={SECRETS[0]}"]
    arguments += [f"--api-keys=a sha256:{SECRETS[1]}", "--hf-token", SECRETS[0]]
    assert main(arguments) == 0
    shown = capsys.readouterr().out
    assert '"tls_key_password": "**********"' in shown
    assert '"api_keys": "**********"' in shown
    assert '"management_keys": "**********"' in shown
    for secret in SECRETS:
        assert secret not in shown


def test_a_refusal_of_other_settings_shows_no_secret(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["settings", "--port=no", f"--tls-key-password={SECRETS[0]}"]
    assert main([*arguments, f"--api-keys=a sha256:{SECRETS[1]}"]) == 2
    refusal = capsys.readouterr().err
    assert "port" in refusal
    for secret in SECRETS:
        assert secret not in refusal
