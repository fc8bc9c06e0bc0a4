"""Keeps the tables in the docs equal to the tables in the code.

A page marks a table with `<!-- table: NAME -->` and `<!-- end -->`; what stands
between is written from the code by `python docs/tables.py`, and the tests fail
when it differs.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from proxy import mindie_metrics as mindie
from proxy.metrics import Metrics
from proxy.openapi import describe
from proxy.routes import ROUTES
from proxy.settings import ENV_PREFIX, Settings
from translators import errors
from translators.contract import (
    BEHAVIOURS,
    CONTRACTS,
    DIALECT,
    DIALECT_IGNORED,
    DOCUMENTED,
    SERVER,
    Parameter,
)
from translators.media_formats import MIB, RULES, formats_of
from translators.tgi_request import UNSUPPORTED
from translators.tgi_request import tgi_parameters as tgi_rows

DOCS: Final = Path(__file__).resolve().parent
_BLOCK: Final = re.compile(r"(<!-- table: ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)
Row = Iterable[object]


def render(text: str) -> str:
    """`text` with every marked table written anew. KeyError for an unknown name."""
    return _BLOCK.sub(lambda match: match[1] + TABLES[match[2]]() + match[3], text)


def table(head: Row, rows: Iterable[Row]) -> str:
    """A Markdown table; pipes in cells are escaped."""
    lines = [_line(head), _line("---" for _ in head), *map(_line, rows)]
    return "\n".join(lines) + "\n"


def _line(cells: Row) -> str:
    return "| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |"


def _code(value: object) -> str:
    return f"`{value}`"


def _both(show: Callable[[Parameter], str], name: str) -> str:
    documented, server = show(DOCUMENTED.parameter(name)), show(SERVER.parameter(name))
    return documented if documented == server else f"{documented}; server: {server}"


def _bounds(row: Parameter) -> str:
    return "" if row.range is None else str(row.range)


def _default(row: Parameter) -> str:
    return "absent" if row.default is None else str(row.default).lower()


def parameters() -> str:
    """Contract §3, both contracts in one cell where they differ."""
    return table(
        ["key", "type", "range", "default", "effect"],
        (
            [
                _code(row.name),
                row.kind.value,
                _both(_bounds, row.name),
                _both(_default, row.name),
                row.effect,
            ]
            for row in DOCUMENTED.parameters
        ),
    )


def tgi_parameters() -> str:
    """The parameters of the TGI shape."""
    rows = [
        [_code(row.name), row.kind.value, row.range or "", _default(row), row.effect]
        for row in tgi_rows(DOCUMENTED)
    ]
    rows += [[_code(name), "", "", "absent", "refused with 422"] for name in UNSUPPORTED]
    return table(["key", "type", "range", "default", "effect"], rows)


def differences() -> str:
    """Contract §8: parameters first, then behaviours."""
    rows: list[list[object]] = []
    for ours, theirs in zip(DOCUMENTED.parameters, SERVER.parameters, strict=True):
        for topic, show in (("range", _bounds), ("default", _default)):
            if show(ours) != show(theirs):
                rows.append([f"{_code(ours.name)} {topic}", show(ours), show(theirs)])
    rows += [
        [row.topic, _word(row.values.documented), _word(row.values.server)] for row in BEHAVIOURS
    ]
    return table(["topic", *map(_code, CONTRACTS)], rows)


def _word(value: Any) -> str:
    match value:
        case None:
            return "none"
        case bool():
            return "yes" if value else "no"
        case str():
            return _code(value)
        case _:
            return str(value)


def dialect() -> str:
    """The Triton dialect's top-level fields."""
    rows = [
        [
            _code(row.name),
            _code(row.parameter) if row.parameter else "",
            row.range or "",
            row.meaning,
        ]
        for row in DIALECT
    ]
    rows += [[_code(name), "", "", "understood and ignored"] for name in DIALECT_IGNORED]
    return table(["field", "stands for", "range", "meaning"], rows)


def _with_status(base: type[errors.GatewayError]) -> Iterator[type[errors.GatewayError]]:
    """Every class below `base` that has a status of its own."""
    for cls in base.__subclasses__():
        if "status" in vars(cls):
            yield cls
        yield from _with_status(cls)


def failures() -> str:
    """Every status, from the exception tree."""
    # The TGI shape's variants have a page of their own.
    found = [cls for cls in _with_status(errors.GatewayError) if cls.__module__ == errors.__name__]
    classes = sorted(found, key=lambda cls: cls.status)
    rows = [
        [cls.status, _code(cls.error_type), (cls.__doc__ or "").splitlines()[0]] for cls in classes
    ]
    return table(["status", "error_type", "when"], rows)


def media() -> str:
    """Contract §6: each kind of media with its formats and its limit."""
    rows = []
    for rule in RULES:
        formats = formats_of(rule.kind)
        types = ", ".join(_code(name) for row in formats for name in row.types)
        endings = ", ".join(name for row in formats for name in row.suffixes)
        rows.append([rule.kind.value, _code(rule.field), endings, types, f"{rule.limit // MIB} MB"])
    return table(["kind", "type", "endings of local files", "types of data URLs", "limit"], rows)


def settings() -> str:
    """Every setting, from the settings model."""
    rows = [
        [
            _code("--" + name.replace("_", "-")),
            _code(ENV_PREFIX + name.upper()),
            _code("unset" if field.default is None else str(field.default).lower()),
            field.description,
        ]
        for name, field in Settings.model_fields.items()
    ]
    return table(["option", "environment", "default", "meaning"], rows)


def metrics() -> str:
    """The gateway's own metrics, from a registry."""
    rows = [
        [
            _code(family.name + "_total" * (family.type == "counter")),
            family.type,
            family.documentation,
        ]
        for family in Metrics().registry.collect()
    ]
    return table(["name", "type", "meaning"], rows)


def mindie_metrics() -> str:
    """MindIE's own metrics that are shown."""
    rows = [
        [_code(f.name), f.kind, f.meaning, " ".join(f"{bound:g}" for bound in f.buckets)]
        for f in mindie.TABLE
    ]
    return table(["name", "type", "meaning", "buckets"], rows)


def absent_metrics() -> str:
    """MindIE's own metrics for which there is no figure."""
    rows = [[_code(name), why] for name, why in mindie.ABSENT.items()]
    return table(["name", "why it is absent"], rows)


def routes() -> str:
    """Every route, from the table of routes."""
    rows = [
        [
            f"`{route.method} {re.sub(':[^}]+', '', route.path)}`",
            route.listener.value,
            route.group.value,
            (route.handler.__doc__ or "").splitlines()[0],
        ]
        for route in ROUTES
    ]
    return table(["route", "listener", "API keys", "answer"], rows)


TABLES: Final[dict[str, Callable[[], str]]] = {
    "parameters": parameters,
    "differences": differences,
    "dialect": dialect,
    "failures": failures,
    "tgi_parameters": tgi_parameters,
    "metrics": metrics,
    "mindie_metrics": mindie_metrics,
    "absent_metrics": absent_metrics,
    "routes": routes,
    "settings": settings,
    "media": media,
}


def openapi() -> str:
    """The committed copy of /openapi.json, in the documented contract."""
    return json.dumps(describe(DOCUMENTED), indent=2, ensure_ascii=False) + "\n"


def main() -> int:
    """Write all pages anew; returns 0."""
    (DOCS / "openapi.json").write_text(openapi(), encoding="utf-8")
    for page in sorted(DOCS.glob("*.md")):
        text = page.read_text(encoding="utf-8")
        fresh = render(text)
        if fresh != text:
            page.write_text(fresh, encoding="utf-8")
            print(f"{page.name}: tables written")
    return 0


if __name__ == "__main__":
    sys.exit(main())
