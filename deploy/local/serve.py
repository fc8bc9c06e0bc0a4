"""`make serve`: install what is missing, then become the gateway on a small real model.

Environment: VENV (folder), PORT, MODEL (folder or hub name instead of SmolLM2),
MODEL_NAME (the name in the URL), SERVE_ARGS (more options for the gateway or vLLM).
"""

from __future__ import annotations

import os
import shlex
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from engines import default_engine
from environment import Contents, Environment
from installation import prepare
from layout import LOGS, SCRIPTS, alone, venv_folder
from models import SMOLLM2, prepare_smollm2
from outcome import reported
from progress import Progress

_DEFAULT_PORT: Final = "1025"
_LAST_PORT: Final = 65535
_DEFAULT_NAME: Final = "smollm2"
_ENGINE_OPTIONS: Final = (
    # Without AVX512, float32 is twice as fast as bfloat16.
    "--dtype=float32",
    "--max-model-len=2048",
    # Not compiled: ready in a third of the time, and no C++ compiler is needed.
    "--enforce-eager",
)
_VARIABLES: Final = {
    "VLLM_CPU_KVCACHE_SPACE": "2",  # GiB
    "VLLM_LOGGING_LEVEL": "ERROR",  # its warnings are about what a GPU would offer
    "VLLM_NO_USAGE_STATS": "1",
}


@dataclass(frozen=True)
class Service:
    """What is served, and where."""

    model: str
    name: str
    port: str
    more: tuple[str, ...]

    @classmethod
    def from_environment(cls) -> Service:
        """As the environment wants it; SmolLM2 on port 1025 by itself."""
        model = os.environ.get("MODEL") or str(SMOLLM2)
        own_name = Path(model).name if os.environ.get("MODEL") else _DEFAULT_NAME
        return cls(
            model=model,
            name=os.environ.get("MODEL_NAME") or own_name,
            port=_port(os.environ.get("PORT") or _DEFAULT_PORT),
            more=tuple(shlex.split(os.environ.get("SERVE_ARGS", ""))),
        )

    def command(self, gateway: Path) -> list[str]:
        """The command line; what the person added comes last and wins."""
        return [
            *(str(gateway), "serve", self.model, "--served-model-name", self.name),
            *(f"--port={self.port}", *_ENGINE_OPTIONS, *self.more),
        ]


def main() -> None:
    """Prepare, then replace this process by the gateway."""
    service = Service.from_environment()
    own_model = service.model == str(SMOLLM2)
    environment = Environment(venv_folder())
    progress = Progress(4 if own_model else 3, LOGS)
    with alone():
        prepare(environment, Contents(engine=default_engine()), progress)
        if own_model:
            prepare_smollm2(environment, progress)
    progress.step(f"Gateway on port {service.port}: loading the model, about half a minute")
    _announce_when_ready(service)
    command = service.command(environment.program("mindie-gateway"))
    progress.note(shlex.join(command))
    sys.stdout.flush()
    os.execve(command[0], command, {**_VARIABLES, **os.environ})


def _port(text: str) -> str:
    if not text.isdecimal() or not 0 < int(text) <= _LAST_PORT:
        sys.exit(f"PORT must be a number from 1 to {_LAST_PORT}, got {text!r}")
    return text


def _announce_when_ready(service: Service) -> None:
    """Let a helper print the request to try, as soon as this very process can answer it."""
    if _somebody_listens(int(service.port)):
        return  # not us: the gateway will say that the port is taken
    subprocess.run(
        [sys.executable, SCRIPTS / "announce.py", service.port, service.name, str(os.getpid())],
        check=True,
    )


def _somebody_listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


if __name__ == "__main__":
    sys.exit(reported(main))
