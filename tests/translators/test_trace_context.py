"""The trace of a request: W3C as it is, b3 made into it, and nothing of what is malformed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from multidict import CIMultiDict

from translators.trace_context import trace_context

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
W3C = f"00-{TRACE}-{SPAN}-01"


def read(**headers: str) -> dict[str, str]:
    return trace_context(CIMultiDict({k.replace("_", "-"): v for k, v in headers.items()}))


def test_w3c_goes_through_as_it_is() -> None:
    both = read(traceparent=W3C, tracestate="a=1,b=2")
    assert both == {"traceparent": W3C, "tracestate": "a=1,b=2"}
    assert read(Traceparent=f" {W3C} ") == {"traceparent": W3C}


@pytest.mark.parametrize(
    ("headers", "flags"),
    [
        ({"b3": f"{TRACE}-{SPAN}-1"}, "01"),
        ({"b3": f"{TRACE}-{SPAN}-d"}, "01"),
        ({"b3": f"{TRACE}-{SPAN}-0"}, "00"),
        ({"b3": f"{TRACE}-{SPAN}"}, "00"),
        ({"b3": f"{TRACE}-{SPAN}-1-05e3ac9a4f6e3b90"}, "01"),
        ({"X_B3_TraceId": TRACE, "X_B3_SpanId": SPAN, "X_B3_Sampled": "1"}, "01"),
        ({"x_b3_traceid": TRACE.upper(), "x_b3_spanid": SPAN, "x_b3_sampled": "true"}, "01"),
        ({"X_B3_TraceId": TRACE, "X_B3_SpanId": SPAN, "X_B3_Flags": "1"}, "01"),
        ({"X_B3_TraceId": TRACE, "X_B3_SpanId": SPAN}, "00"),
    ],
)
def test_b3_becomes_w3c(headers: dict[str, str], flags: str) -> None:
    assert read(**headers) == {"traceparent": f"00-{TRACE}-{SPAN}-{flags}"}


def test_a_short_trace_id_of_b3_is_filled_up() -> None:
    assert read(b3=f"{SPAN}-{SPAN}-1") == {"traceparent": f"00-{'0' * 16}{SPAN}-{SPAN}-01"}


def test_w3c_wins() -> None:
    assert read(traceparent=W3C, b3=f"{'1' * 32}-{SPAN}-1") == {"traceparent": W3C}


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"b3": "0"},
        {"b3": ""},
        {"b3": f"{'0' * 32}-{SPAN}-1"},
        {"b3": f"{TRACE}-{'0' * 16}-1"},
        {"b3": f"{TRACE[:-1]}-{SPAN}-1"},
        {"X_B3_TraceId": TRACE},
        {"traceparent": W3C.upper()},
        {"traceparent": W3C + "-extra"},
        {"traceparent": f"ff-{TRACE}-{SPAN}-01"},
        {"traceparent": f"00-{'0' * 32}-{SPAN}-01"},
        {"tracestate": "a=1"},
    ],
)
def test_what_is_malformed_is_no_trace(headers: dict[str, str]) -> None:
    assert read(**headers) == {}


@pytest.mark.parametrize("state", ["", "a" * 513, "a\x00b", "ä=1"])
def test_an_unusable_state_is_left_out(state: str) -> None:
    assert read(traceparent=W3C, tracestate=state) == {"traceparent": W3C}


@given(st.text(max_size=80), st.text(max_size=80))
def test_no_header_breaks_it(parent: str, b3: str) -> None:
    assert set(read(traceparent=parent, b3=b3)) <= {"traceparent"}
