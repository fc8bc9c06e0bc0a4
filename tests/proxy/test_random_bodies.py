"""Never a 500, never a crash, whatever the bytes (contract §2): 10,000 bodies, then life."""

from __future__ import annotations

import asyncio
import copy
import json
import os
import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import orjson
import pytest

from tests.support import RunningGateway, connection, generate_body, post, request_bytes, serving
from translators.contract import DIALECT, DIALECT_IGNORED, DOCUMENTED

CONNECTIONS = 8
ANSWERS = {200, 422, 424}
"""What a body can bring about when everything around it is right."""

SEED = int(os.environ.get("RANDOM_BODIES_SEED", "0")) or random.SystemRandom().getrandbits(32)

VALID = orjson.dumps(
    {
        "id": "a123",
        "text_input": "one two \U0001f600 中",
        "parameters": {
            "temperature": 0.5,
            "top_k": 10,
            "top_p": 0.95,
            "seed": 7,
            "do_sample": True,
            "repetition_penalty": 1.03,
            "details": True,
            "max_new_tokens": 3,
            "priority": 2,
            "timeout": 9,
            "decodeTime": [1, 2],
        },
        "stop_words": ["x", ""],
    }
)
NASTY: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 2**31, 2**63, 2**64, -(2**63), 0.0, -0.0, 1e-300, 1e300, 0.5),
    *("", "0", "1", "true", "\x00", "\ud83d".encode("utf-8", "surrogatepass").decode("latin-1")),
    *("\ufffd", "{}", "x" * 300, [], [[]], [None], [1, "a"], {}, {"type": "text"}),
    *({"type": "text", "text": "a"}, {"type": "image_url", "image_url": "http://a/b.png"}),
)
RAW = (
    *(b"NaN", b"Infinity", b"-Infinity", b"1e400", b"-", b"01", b"1.", b".5", b"+1", b"1_0"),
    *(b"9" * 5000, b"[" * 5000, b"[" * 600 + b"]" * 600, b'{"a":' * 600 + b"1" + b"}" * 600),
    *(b'"\\ud83d"', b'"\\udc00\\ud800"', b'"\xff\xfe"', b'"\xed\xa0\x80"', b"'a'", b"//", b"\x00"),
    *(b"\xef\xbb\xbf{}", b"\xff\xfe{\x00}\x00", b"{}{}", b"{},", b"", b" ", b"null", b'"a"'),
)
KEYS = (
    *("id", "text_input", "parameters", "stream", "unknown"),
    *(row.name for row in DOCUMENTED.parameters),
    *(row.name for row in DIALECT),
    *DIALECT_IGNORED,
)


def random_bodies(rng: random.Random, count: int) -> Iterator[bytes]:
    """Mutations of the valid body, nasty values under real keys, and noise; in equal shares."""
    makers = (_flipped, _cut_and_pasted, _with_nasty_values, _with_raw_json, _noise)
    for number in range(count):
        yield makers[number % len(makers)](rng)


def _flipped(rng: random.Random) -> bytes:
    body = bytearray(VALID)
    for _ in range(rng.randint(1, 4)):
        body[rng.randrange(len(body))] = rng.randrange(256)
    return bytes(body)


def _cut_and_pasted(rng: random.Random) -> bytes:
    begin, end, to = sorted(rng.randrange(len(VALID)) for _ in range(3))
    piece = VALID[begin:end]
    return rng.choice((VALID[:begin] + VALID[end:], VALID[:to] + piece + VALID[to:], piece))


def _with_nasty_values(rng: random.Random) -> bytes:
    body = orjson.loads(VALID)
    for _ in range(rng.randint(1, 3)):
        target = rng.choice((body, body["parameters"]))
        if isinstance(target, dict):
            key, value = rng.choice(KEYS), copy.deepcopy(rng.choice(NASTY))
            if key != "parameters" or isinstance(value, dict):
                target[key] = value
    # Python's own encoder writes what orjson refuses.
    return json.dumps(body).encode("utf-8", "surrogatepass")


def _with_raw_json(rng: random.Random) -> bytes:
    raw = rng.choice(RAW)
    if rng.random() < 0.3:
        return raw
    key = rng.choice(KEYS).encode()
    if rng.random() < 0.5:
        return b'{"text_input":"a","parameters":{"%b":%b,"max_new_tokens":2}}' % (key, raw)
    return b'{"text_input":"a","parameters":{"max_new_tokens":2},"%b":%b}' % (key, raw)


def _noise(rng: random.Random) -> bytes:
    return rng.randbytes(rng.randint(0, 200))


@pytest.mark.parametrize(("contract", "count"), [("documented", 10_000), ("server", 2_500)])
async def test_no_body_is_a_500(contract: str, count: int) -> None:
    bodies = list(random_bodies(random.Random(f"{SEED}-{contract}"), count))
    async with serving(contract=contract, max_iter_times=3) as running:
        shares = [bodies[number::CONNECTIONS] for number in range(CONNECTIONS)]
        counts = await asyncio.gather(*(_send(running, share) for share in shares))
        total = sum(counts, Counter[int]())
        # Both sides of the line were really visited.
        assert total[200] > 100, total
        assert total[422] > 500, total
        response = await post(running.port, generate_body())
        assert response.texts == [" one", " two", " one"]
        await running.settled(succeeded=total[200] + 1, refused=sum(total.values()) - total[200])


async def _send(running: RunningGateway, bodies: list[bytes]) -> Counter[int]:
    """All bodies on one connection, which none of them may end."""
    statuses = Counter[int]()
    async with connection(running.port) as client:
        for body in bodies:
            response = await client.ask(request_bytes(body))
            assert response.status in ANSWERS, (SEED, body, response.body)
            assert response.complete, (SEED, body)
            if response.status != 200:
                assert list(response.json) == ["error", "error_type"], (SEED, body)
            statuses[response.status] += 1
    return statuses
