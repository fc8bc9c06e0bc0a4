"""`python -m tests.bench [--smoke] [--only P1,P2] [--model DIR] [--real-model DIR] [--out DIR]`."""

from __future__ import annotations

import argparse
import shlex
import sys
from dataclasses import replace
from pathlib import Path

from tests.bench.measures import MEASURES, SMOKE, Plan
from tests.bench.report import table, write


def main() -> int:
    """Run, print, write. Exit code 1 when a smoke run is worse than target and noise allow."""
    options = _options()
    names = options.only.split(",") if options.only else SMOKE if options.smoke else MEASURES
    plan = Plan(model=options.model, real_model=options.real_model)
    if options.smoke:
        plan = replace(plan, rounds=3, tokens=300, engine_tokens=100, portions=(1,))
    rows = []
    for name in names:
        print(f"{name} ...", file=sys.stderr, flush=True)
        rows += MEASURES[name](plan)
    print(table(rows))
    if options.out is not None:
        write(rows, options.out, shlex.join(["python", "-m", "tests.bench", *sys.argv[1:]]))
    if options.smoke and not all(row.within_noise for row in rows):
        print("worse than target and noise allow", file=sys.stderr)
        return 1
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.bench")
    parser.add_argument("--smoke", action="store_true", help="a short run that can fail")
    parser.add_argument("--only", help="comma list of P1 to P10")
    parser.add_argument("--model", default=".cache/models/tiny-llama")
    parser.add_argument("--real-model", default=".cache/models/smollm2-135m-instruct")
    parser.add_argument("--out", type=Path, help="folder for bench.json and bench.svg")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
