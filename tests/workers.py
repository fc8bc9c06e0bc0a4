"""What the tests of several workers share: which one answers, and what all have counted."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

from tests.support import (
    Connection,
    connection,
    frame_json,
    generate_body,
    request_bytes,
)

OUTCOMES: Final = ("succeeded", "failed", "cancelled", "refused")


@asynccontextmanager
async def at_worker(port: int, index: int) -> AsyncIterator[Connection]:
    """A connection to this one of two; the ids that they give tell them apart."""
    while True:
        async with connection(port) as client:
            first = await client.ask(request_bytes(generate_body(tokens=1)))
            if worker_of(first.frames[0]) == index:
                yield client
                return


def worker_of(frame: dict[str, Any]) -> int:
    return (int(frame["id"].removeprefix("endpoint_common_")) - 1) % 2


async def begin_stream(client: Connection, client_id: str, tokens: int = 3) -> None:
    """A stream that has got its first token."""
    client.send(request_bytes({**generate_body("one two three", tokens), "id": client_id}))
    assert (await client.head()).status == 200
    assert frame_json(await client.chunk())["id"] == client_id


def total(page: str, name: str, *labels: str) -> float:
    """The sum of the samples with this name and all these words among their labels."""
    lines = (line for line in page.splitlines() if re.match(rf"{name}[ {{]", line))
    return sum(float(line.rpartition(" ")[2]) for line in lines if all(w in line for w in labels))


def outcomes(page: str) -> dict[str, float]:
    name = "mindie_gateway_requests_finished_total"
    counts = {each: total(page, name, f'outcome="{each}"') for each in OUTCOMES}
    return {outcome: count for outcome, count in counts.items() if count}
