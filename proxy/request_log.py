"""One line in the log for each finished request: who, what, how it ended, and when.

Never a prompt or a text. What a client chose (its ids) has a form that cannot
break a line; everything else comes from our own tables.
"""

from __future__ import annotations

import logging
import re
import time
import uuid
from typing import Any, Final

from aiohttp import web
from multidict import istr

from proxy.metrics import Account, Outcome

log = logging.getLogger(__name__)

REQUEST_UUID: Final = istr("RequestUUID")
X_REQUEST_ID: Final = "X-Request-Id"
_UUID: Final = re.compile(r"[0-9a-f]{32}")
_ID: Final = re.compile(r"[A-Za-z0-9_.:/+=@-]{1,128}")

ACCOUNT: Final = web.RequestKey("account", Account)
"""The books of a generation; other requests have none."""
CALLER: Final = web.RequestKey("caller", str)
"""The name of the API key that a request came with; absent where none was needed."""
TRACE: Final = web.RequestKey("trace", dict[str, str])
"""The trace context for the engine; empty outside any trace."""
QUIET: Final = web.RequestKey("quiet", bool)
"""Set for what machines ask all day: health and metrics are logged at debug only."""


class Ids:
    """The ids of one request: the client's own where they have the right form."""

    __slots__ = ("other", "uuid")

    def __init__(self, request: web.Request) -> None:
        given, other = request.headers.get(REQUEST_UUID, ""), request.headers.get(X_REQUEST_ID, "")
        self.uuid = given if _UUID.fullmatch(given) else uuid.uuid4().hex
        self.other = other if _ID.fullmatch(other) else None


IDS: Final = web.RequestKey("ids", Ids)


def finished(request: web.Request, status: int | None, started: float) -> dict[str, Any]:
    """Log the end of a request and return what was said.

    `status` is None when no whole answer went out.
    """
    fields = _fields(request, status, started)
    known = {name: value for name, value in fields.items() if value is not None}
    level = logging.DEBUG if request.get(QUIET) else logging.INFO
    log.log(level, "request", extra={"fields": known})
    return known


def _fields(request: web.Request, status: int | None, started: float) -> dict[str, Any]:
    resource = request.match_info.route.resource
    ids = request[IDS]
    return {
        "request_uuid": ids.uuid,
        "x_request_id": ids.other,
        "key": request.get(CALLER),
        "method": request.method,
        "route": None if resource is None else resource.canonical,
        "status": status,
        **_generation(request.get(ACCOUNT)),
        "total_ms": _ms(time.monotonic() - started),
    }


def _generation(account: Account | None) -> dict[str, Any]:
    if account is None:
        return {}
    cancelled = account.outcome is Outcome.CANCELLED
    return {
        "id": account.client_id,
        "engine_id": account.engine_id,
        "model": account.model,
        "outcome": account.outcome.value,
        "error_type": account.error_type,
        "finish_reason": account.finish_reason,
        "cancel_phase": account.phase.value if cancelled else None,
        "prompt_tokens": account.prompt_tokens,
        "generated_tokens": account.generated_tokens,
        "queue_ms": _ms(account.queued),
        "first_token_ms": _ms(account.first_token_after),
    }


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 1)
