"""An environment in which vLLM is not installed, within one that has it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import ModuleType

import pytest


class _NotInstalled:
    """Finds nothing named vllm, in the words of the import system."""

    @staticmethod
    def find_spec(
        name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> None:
        if name.partition(".")[0] == "vllm":
            raise ModuleNotFoundError("No module named 'vllm'", name="vllm")


def without_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    """For the rest of a test: vLLM and what imports it are not there."""
    for name in list(sys.modules):
        if name.partition(".")[0] == "vllm" or name == "proxy.engines.embedded":
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [_NotInstalled, *sys.meta_path])
