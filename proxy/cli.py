"""The command line: `mindie-gateway serve MODEL [gateway options] [vLLM options]`.

The gateway's options are made from the settings model. Whatever else stands on
the line belongs to vLLM and is handed over as it is.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
from typing import Any, Final, Literal, get_args, get_origin

from pydantic.fields import FieldInfo

from proxy import __version__
from proxy.settings import (
    CONFIG_FILE_ENV,
    ENV_PREFIX,
    NO_VLLM,
    VLLM_TABLE,
    Settings,
    SettingsError,
    hidden_secrets,
    load_settings,
    vllm_flags,
)

_USAGE: Final = (
    "mindie-gateway serve MODEL [gateway options] [any vLLM engine option]\n"
    "       mindie-gateway serve --upstream URL [--upstream URL ...] [gateway options]"
)
_USAGE_ERROR: Final = 2


def main(argv: list[str] | None = None) -> int:
    """Run the command line and return the process's exit code."""
    arguments = sys.argv[1:] if argv is None else argv
    parser = _parser()
    known, rest = parser.parse_known_args(arguments)
    if known.vllm_help is not None:
        return _vllm_help(known.vllm_help)
    if known.command is None:
        parser.print_help()
        return 0 if not arguments else _USAGE_ERROR
    model, engine_flags = _split_model(rest)
    try:
        settings, engine_flags = _effective(known, engine_flags)
    except SettingsError as error:
        print(f"mindie-gateway: {error}", file=sys.stderr)
        return _USAGE_ERROR
    if known.command == "settings":
        return _show(_describe(settings, model, engine_flags))
    return _serve(settings, model, engine_flags)


def _vllm_help(word: str) -> int:
    """vLLM's own help on its options, for the version that is installed."""
    print("importing vLLM, which may take a minute ...", file=sys.stderr)
    try:
        from proxy.engines.embedded import engine_parser
    except ModuleNotFoundError as error:
        if error.name != "vllm":
            raise
        print(f"mindie-gateway: {NO_VLLM}", file=sys.stderr)
        return _USAGE_ERROR
    with contextlib.suppress(SystemExit):
        engine_parser().parse_args([f"--help={word}"])
    return 0


def _serve(settings: Settings, model: str | None, engine_flags: list[str]) -> int:
    # Imported here: `--help` and `settings` answer at once without it.
    from proxy.lifecycle import run

    return run(settings, model, engine_flags)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="mindie-gateway",
        usage=_USAGE,
        description="Serves MindIE's Triton-style streaming API in front of vLLM.",
        epilog=(
            "vLLM options: every option of vLLM's engine is accepted after MODEL and handed "
            "over unchanged, such as --served-model-name, --tensor-parallel-size, "
            "--max-model-len, --dtype. `mindie-gateway serve --vllm-help` lists those of the "
            "installed vLLM, `--vllm-help=WORD` those of one group or with this word."
        ),
        allow_abbrev=False,
    )
    parser.add_argument(
        "--vllm-help",
        nargs="?",
        const="all",
        metavar="WORD",
        help="list the engine options of the installed vLLM: all, one group, or those with WORD",
    )
    parser.add_argument("--version", action="version", version=f"mindie-gateway {__version__}")
    parser.add_argument(
        "command",
        nargs="?",
        choices=("serve", "settings"),
        help="serve: run the gateway; settings: print the effective settings, secrets hidden",
    )
    group = parser.add_argument_group(
        "gateway options",
        f"Each is also an environment variable ({ENV_PREFIX}...) and a key of the config file.",
    )
    group.add_argument(
        "--config-file",
        default=os.environ.get(CONFIG_FILE_ENV) or None,
        help=f"TOML file with settings and a [{VLLM_TABLE}] table ({CONFIG_FILE_ENV})",
    )
    for name in Settings.model_fields:
        _add_option(group, name)
    return parser


def _add_option(group: argparse._ArgumentGroup, name: str) -> None:
    field = Settings.model_fields[name]
    flag = "--" + name.replace("_", "-")
    default = "unset" if field.default in (None, (), "") else field.default
    text = f"{field.description} Default: {default}.".replace("%", "%%")
    if field.annotation is bool:
        group.add_argument(
            flag, action=argparse.BooleanOptionalAction, default=argparse.SUPPRESS, help=text
        )
    elif field.default == ():
        group.add_argument(
            flag, action="append", default=argparse.SUPPRESS, metavar="VALUE", help=text
        )
    else:
        group.add_argument(flag, default=argparse.SUPPRESS, metavar=_values(field), help=text)


def _values(field: FieldInfo) -> str:
    """What may stand there, where it is one of a few words."""
    words = get_args(field.annotation)
    return f"{{{','.join(words)}}}" if get_origin(field.annotation) is Literal else "VALUE"


def _show(text: str) -> int:
    """Print; whoever reads may stop early, as `head` does."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        # Python would complain at its end, too.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def _split_model(rest: list[str]) -> tuple[str | None, list[str]]:
    """MODEL is the word right after the command; the rest is vLLM's."""
    if rest and not rest[0].startswith("-"):
        return rest[0], rest[1:]
    return None, rest


def _effective(known: argparse.Namespace, flags: list[str]) -> tuple[Settings, list[str]]:
    given: dict[str, Any] = {
        name: value for name, value in vars(known).items() if name in Settings.model_fields
    }
    settings, table = load_settings(given, known.config_file)
    # Later flags win in vLLM's parser, so the command line comes after the file.
    return settings, [*vllm_flags(table), *flags]


def _describe(settings: Settings, model: str | None, engine_flags: list[str]) -> str:
    shown = {
        "gateway": settings.model_dump(mode="json"),
        "model": model,
        "vllm": hidden_secrets(engine_flags),
    }
    return json.dumps(shown, indent=2, ensure_ascii=False)


if __name__ == "__main__":
    sys.exit(main())
