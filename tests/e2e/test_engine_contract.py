"""The engine contract over real vLLM: in this process, as one of two clients, over HTTP."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.e2e.remote import RemoteGateway
from tests.e2e.support import E2E, RealGateway
from tests.engine_contract.case import Case
from tests.engine_contract.suite import *  # noqa: F403

if TYPE_CHECKING:
    from tests.e2e.shared import SharedPair

pytestmark = E2E


@pytest.fixture(params=["embedded", "shared", "remote"])
def case(
    request: pytest.FixtureRequest, real: RealGateway, shared: SharedPair, remote: RemoteGateway
) -> Case:
    """A real engine with nothing running."""
    unknown = real.running.gateway.info.vocab_size + 7
    if request.param == "embedded":
        info = real.running.gateway.info
        return Case(real.engine, info, held=lambda: real.unfinished, unknown_token=unknown)
    if request.param == "shared":
        # The first client gets the statistics of idle steps: the second one has it harder.
        return Case(shared.second, shared.info, held=shared.held, unknown_token=unknown)
    return Case(remote.engine, remote.info, held=remote.held, unknown_token=unknown)
