"""The trace a request belongs to, from its headers: W3C's, or Zipkin's b3 made into W3C's.

A header that is not well formed is as if it were not there: a trace is broken,
never a request. W3C's wins where both are given.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

_W3C: Final = re.compile(r"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
_TRACE: Final = re.compile(r"(?:[0-9a-f]{16}){1,2}")
_SPAN: Final = re.compile(r"[0-9a-f]{16}")
_SAMPLED: Final = frozenset({"1", "d", "true"})
_MAX_STATE: Final = 512


def trace_context(headers: Mapping[str, str]) -> dict[str, str]:
    """`traceparent` and perhaps `tracestate`; empty where the request names no trace."""
    parent = headers.get("traceparent", "").strip()
    if _W3C.fullmatch(parent):
        state = headers.get("tracestate", "").strip()
        usable = state and len(state) <= _MAX_STATE and state.isascii() and state.isprintable()
        return {"traceparent": parent, **({"tracestate": state} if usable else {})}
    return _from_b3(*_b3(headers))


def _b3(headers: Mapping[str, str]) -> tuple[str, str, str]:
    """Trace id, span id and sampling, from the single header or the several."""
    single = headers.get("b3")
    if single is not None:
        parts = [*single.strip().lower().split("-"), "", "", ""]
        return parts[0], parts[1], parts[2]
    debug = headers.get("X-B3-Flags", "") == "1"
    return (
        headers.get("X-B3-TraceId", "").strip().lower(),
        headers.get("X-B3-SpanId", "").strip().lower(),
        "d" if debug else headers.get("X-B3-Sampled", "").strip().lower(),
    )


def _from_b3(trace: str, span: str, sampled: str) -> dict[str, str]:
    if not _TRACE.fullmatch(trace) or not _SPAN.fullmatch(span):
        return {}
    parent = f"00-{trace:0>32}-{span}-{'01' if sampled in _SAMPLED else '00'}"
    return {"traceparent": parent} if _W3C.fullmatch(parent) else {}
