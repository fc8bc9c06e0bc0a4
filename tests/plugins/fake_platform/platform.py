"""The CPU under another name, which writes down when vLLM turns to it and where."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

from vllm.platforms.cpu import CpuPlatform

DEVICE_NAME = "Fake Accelerator 910"
OPTION = "--fake-accelerator-option"
MARKS = "FAKE_PLATFORM_MARKS"
"""Environment variable: the file to write to."""


def mark(what: str) -> None:
    """Add a line `<process id> <what>`."""
    with Path(os.environ[MARKS]).open("a", encoding="utf-8") as file:
        file.write(f"{os.getpid()} {what}\n")


class FakePlatform(CpuPlatform):
    """What vLLM must use once this package is installed."""

    def __init__(self) -> None:
        mark("chosen")

    @classmethod
    def get_device_name(cls, device_id: int = 0) -> str:
        return DEVICE_NAME

    @classmethod
    def pre_register_and_update(cls, parser: argparse.ArgumentParser | None = None) -> None:
        super().pre_register_and_update(parser)
        if parser is not None:
            mark("options")
            parser.add_argument(OPTION, action="store_true")

    @classmethod
    def check_and_update_config(cls, vllm_config: Any) -> None:
        super().check_and_update_config(vllm_config)
        mark("config")
