"""The device is vLLM's business: nothing in our code names one."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import proxy
import translators

WIRE_WORDS = ("metadata.py", "mindie_metrics.py")
"""Modules that answer with MindIE's own names, some of which name a device."""
ALLOWED = {
    "cpu_kv_cache_bytes": "host memory for the cache, whatever the device",
    "num_gpu_blocks": "vLLM's name for the cache's blocks, whatever the device",
    "torch_shm": "vLLM's name for a way of media to its engine, whatever the device",
    "torch.": "how vLLM spells a dtype",
    "RLIMIT_CPU": "the kernel's name for time to compute",
}
DEVICES = re.compile(r"\b(cpu|cuda|gpu|npu|ascend|torch|rocm|xpu)\b", re.IGNORECASE)


def words_of_the_code() -> Iterator[tuple[str, str]]:
    """Every name and every text in our code with its place, but for sentences and docstrings."""
    for package in (proxy, translators):
        for path in Path(package.__path__[0]).rglob("*.py"):
            if path.name in WIRE_WORDS:
                continue
            tree = ast.parse(path.read_text(encoding="utf-8"))
            statements = {id(n.value) for n in ast.walk(tree) if isinstance(n, ast.Expr)}
            for node in ast.walk(tree):
                word = _word(node)
                if word is not None and " " not in word and id(node) not in statements:
                    yield f"{path.name}:{getattr(node, 'lineno', 0)}", word


def _word(node: ast.AST) -> str | None:
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.Name(id=name) | ast.Attribute(attr=name) | ast.alias(name=name):
            return name
    return None


def test_our_code_names_no_device() -> None:
    words = list(words_of_the_code())
    assert len(words) > 1000
    devices = [(at, word) for at, word in words if DEVICES.search(word.replace("_", " "))]
    assert [(at, word) for at, word in devices if word not in ALLOWED] == []
