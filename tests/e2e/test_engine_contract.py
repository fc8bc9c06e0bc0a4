"""The engine contract over real vLLM: in this process, and as a server over HTTP."""

from __future__ import annotations

import pytest

from tests.e2e.remote import RemoteGateway
from tests.e2e.support import E2E, RealGateway
from tests.engine_contract.case import Case
from tests.engine_contract.suite import *  # noqa: F403

pytestmark = E2E


@pytest.fixture(params=["embedded", "remote"])
def case(request: pytest.FixtureRequest, real: RealGateway, remote: RemoteGateway) -> Case:
    """A real engine with nothing running."""
    unknown = real.running.gateway.info.vocab_size + 7
    if request.param == "embedded":
        info = real.running.gateway.info
        return Case(real.engine, info, held=lambda: real.unfinished, unknown_token=unknown)
    return Case(remote.engine, remote.info, held=remote.held, unknown_token=unknown)
