"""The edge is tested on the loop that it runs on, and never logs an error unless a test says so."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator

import pytest
import uvloop

import tests.support


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"uvloop": uvloop.new_event_loop}


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "logs_errors: the test provokes an error in the log")


@pytest.fixture
def workers(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """How many workers `serving` has in this test: a client must not notice."""
    monkeypatch.setattr(tests.support, "WORKERS", request.param)


@pytest.fixture(autouse=True)
def _quiet_log(request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """What clients do is no error: whatever a test makes them do, the log stays without one."""
    yield
    if request.node.get_closest_marker("logs_errors") is None:
        records = caplog.get_records("setup") + caplog.get_records("call")
        errors = [r.getMessage() for r in records if r.levelno >= logging.ERROR]
        assert not errors, errors
