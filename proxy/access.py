"""Who may call what: API keys in front of the routes.

Health routes are open, because kubelets and load balancers hold no key. Service
and management routes each have a ring of keys; while management has none of its
own, the service's keys open it too, so that setting one ring never leaves the
other routes more open than before. Without any ring everything is open.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from enum import StrEnum
from typing import Final

from proxy.api_keys import Key, KeyRing
from proxy.crew import ALONE, Worker
from translators.errors import Forbidden, Unauthorized

_BEARER: Final = "bearer "
_OPEN: Final = nullcontext(None)


class Group(StrEnum):
    """What a route is for, and so which keys open it."""

    SERVICE = "service"
    MANAGEMENT = "management"
    HEALTH = "health"


class Access:
    """The rings in force; replaced while requests run."""

    def __init__(self, worker: Worker = ALONE) -> None:
        self._worker = worker
        self._rings: dict[Group, KeyRing] = {}

    def replace(self, group: Group, keys: list[Key]) -> None:
        """Put new keys in force. What a kept key has used of its limits stays used."""
        self._rings[group] = KeyRing(keys, time.monotonic(), self._rings.get(group), self._worker)

    def entry(self, group: Group, headers: Mapping[str, str]) -> AbstractContextManager[str | None]:
        """Let a request in for a block, with its key's name; None where no key is needed.

        Entering raises Unauthorized, Forbidden or TooManyRequests.
        """
        ring = self._ring(group)
        return _OPEN if ring is None else self._with_key(ring, group, headers)

    @contextmanager
    def _with_key(self, ring: KeyRing, group: Group, headers: Mapping[str, str]) -> Iterator[str]:
        key = self._check(ring, _presented(headers))
        limited = group is Group.SERVICE
        share = ring.allowance(key).taken(time.monotonic()) if limited else nullcontext()
        with share:
            yield key.name

    def guards(self, group: Group) -> bool:
        """Whether the routes of `group` want a key."""
        return self._ring(group) is not None

    def _ring(self, group: Group) -> KeyRing | None:
        if group is Group.HEALTH:
            return None
        return self._rings.get(group) or self._rings.get(Group.SERVICE)

    def _check(self, ring: KeyRing, secret: str | None) -> Key:
        if secret is None:
            raise Unauthorized("an API key is required: Authorization: Bearer KEY, or X-Api-Key")
        key = ring.find(secret)
        if key is not None:
            return key
        if any(other.find(secret) for other in self._rings.values() if other is not ring):
            raise Forbidden("this API key does not open this route")
        raise Unauthorized("the API key is not known")


def _presented(headers: Mapping[str, str]) -> str | None:
    authorization = headers.get("Authorization", "")
    if authorization[: len(_BEARER)].lower() == _BEARER:
        return authorization[len(_BEARER) :].strip()
    return headers.get("X-Api-Key")
