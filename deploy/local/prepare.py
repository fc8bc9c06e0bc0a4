"""Prepares environments and models: the first half of every target in the Makefile.

    prepare.py --with dev            the gateway and its tools, no engine
    prepare.py --with dev --engine   ... and vLLM for the CPU
    prepare.py --models              the models (and what makes them)
    prepare.py --venv .venv-vllm-0.23 --with test --engine 0.23.0
    prepare.py --venv .venv-multimodal --with test --engine 0.32.0-media --multimodal-models

Whatever is there already is left as it is.
"""

from __future__ import annotations

import argparse
import sys
from typing import Final

from engines import default_engine, engine_for
from environment import Contents, Environment
from installation import prepare
from layout import LOGS, ROOT, alone, venv_folder
from models import prepare_multimodal, prepare_smollm2, prepare_tiny_llama
from outcome import reported
from progress import Progress

_PINNED: Final = "pinned"
_STEPS_OF_AN_ENVIRONMENT: Final = 2
_MODELS: Final = (prepare_smollm2, prepare_tiny_llama)


def main() -> None:
    """Prepare what the command line names."""
    arguments = _parser().parse_args()
    contents = _contents(arguments)
    environment = Environment((ROOT / arguments.venv).absolute())
    makers = [*(_MODELS if arguments.models else ())]
    makers += [prepare_multimodal] if arguments.multimodal_models else []
    progress = Progress(_STEPS_OF_AN_ENVIRONMENT + len(makers), LOGS)
    with alone():
        prepare(environment, contents, progress)
        for prepare_model in makers:
            prepare_model(environment, progress)


def _contents(arguments: argparse.Namespace) -> Contents:
    version = arguments.engine or (_PINNED if arguments.models else None)
    if version is None:
        return Contents(frozenset(arguments.extras))
    engine = default_engine() if version == _PINNED else engine_for(version)
    return Contents(frozenset(arguments.extras), engine)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--venv", default=venv_folder(), help="folder of the environment")
    parser.add_argument("--with", dest="extras", action="append", default=[], metavar="EXTRA")
    parser.add_argument(
        "--engine",
        nargs="?",
        const=_PINNED,
        metavar="VERSION",
        help="install vLLM for the CPU; the version of pyproject.toml unless given",
    )
    parser.add_argument("--models", action="store_true", help="prepare the models as well")
    parser.add_argument(
        "--multimodal-models",
        action="store_true",
        help="prepare the tiny multimodal models, from the tokenizer of the others",
    )
    return parser


if __name__ == "__main__":
    sys.exit(reported(main))
