"""10,000 random and mutated bodies: a defined refusal or checked values, nothing else."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, Final

import pytest

from tests.page import PAGE_REQUEST
from tests.translators.requests import BOTH, read
from tests.translators.test_request_parameters import ORDER
from translators.contract import Contract
from translators.errors import InvalidInput
from translators.request import Parameters
from translators.sampling import ModelDefaults, resolve_sampling

COUNT: Final = 10_000
ODD_VALUES: Final = [
    *[None, True, False, 0, 1, -1, 0.0, 1.0, -0.0, 1e-6, 1e-7, 0.5, 1e308, -1e308, 5e-324],
    *[2**31 - 1, 2**31, 2**32, 2**53 + 1, 2**63 - 1, 2**63, 2**64 - 1, 2**64, 10**300, -(2**63)],
    *["", "x", "true", "1", "1.0", "null", "NaN", "é", "😀", "\x00", "x" * 300, "}{"],
    *[[], [1], [[]], [None], ["a"], ["a", "b"], [2**64], [{}], {}, {"a": 1}, {"type": "text"}],
    *[[{"type": "text", "text": "hi"}], [{"type": "image_url", "image_url": {"url": "a"}}]],
]
NAMES: Final = [*ORDER, "max_tokens", "stop_words", "bad_words", "accumulate_tokens", "unknown"]
TOP: Final = [*NAMES, "id", "text_input", "parameters", "stream", "end_id", "min_length"]
TOKENS: Final = [
    *[b"{", b"}", b"[", b"]", b",", b":", b'"', b"\\", b"null", b"true", b"1e400", b"NaN", b"-"],
    *[b"\\ud800", b"\\u0000", b"\xff", b"\xef\xbb\xbf", b"\xed\xa0\x80", b"9" * 400, b"[" * 20],
    *[b'"parameters"', b'"text_input"', b'"seed"', b'"id"', b" ", b"\n", b"\x00", b"//"],
]


def random_bytes(dice: random.Random) -> bytes:
    return dice.randbytes(dice.randrange(200))


def random_tokens(dice: random.Random) -> bytes:
    return b"".join(dice.choices(TOKENS, k=dice.randrange(30)))


def random_fields(dice: random.Random) -> bytes:
    own = {dice.choice(NAMES): dice.choice(ODD_VALUES) for _ in range(dice.randrange(6))}
    document: dict[str, Any] = {"text_input": "hello", "parameters": own}
    document |= {dice.choice(TOP): dice.choice(ODD_VALUES) for _ in range(dice.randrange(3))}
    return json.dumps(document, ensure_ascii=dice.random() < 0.5).encode()


def mutated(dice: random.Random) -> bytes:
    body = bytearray(PAGE_REQUEST)
    for _ in range(dice.randrange(1, 5)):
        at = dice.randrange(len(body) + 1)
        until = min(len(body), at + dice.randrange(6))
        body[at:until] = dice.choice([b"", dice.choice(TOKENS), dice.randbytes(2), body[:20]])
    return bytes(body)


def nested(dice: random.Random) -> bytes:
    value: Any = dice.choice(ODD_VALUES)
    for _ in range(dice.randrange(20)):
        value = [value] if dice.random() < 0.5 else {dice.choice(TOP): value}
    return json.dumps({"text_input": "hello", dice.choice(TOP): value}).encode()


MAKERS: Final[list[Callable[[random.Random], bytes]]] = [
    random_bytes,
    random_tokens,
    random_fields,
    mutated,
    nested,
]


def bodies(seed: int) -> Iterator[bytes]:
    dice = random.Random(seed)
    for n in range(COUNT):
        yield MAKERS[n % len(MAKERS)](dice)


def judged(body: bytes, contract: Contract) -> Parameters | InvalidInput:
    """The checked values, or the refusal. Anything else that is raised is a defect."""
    try:
        return read(body, contract, recompute=True)
    except InvalidInput as refusal:
        return refusal


@pytest.mark.parametrize("contract", BOTH, ids=lambda contract: contract.name)
def test_any_body_is_refused_or_understood(contract: Contract) -> None:
    outcomes: Counter[bool] = Counter()
    for body in bodies(seed=20_260_101):
        outcome = judged(body, contract)
        outcomes[isinstance(outcome, Parameters)] += 1
        if isinstance(outcome, Parameters):
            sampling = resolve_sampling(outcome, ModelDefaults(), vocab_size=100, room=10)
            assert 1 <= sampling.max_tokens <= 10
            assert sampling.top_k is None or 1 <= sampling.top_k <= 100
        else:
            assert 0 < len(outcome.message) < 400
            answer = {"error": outcome.message, "error_type": "Input Validation Error"}
            assert json.loads(outcome.body()) == answer
    # Both outcomes are common, or this would test nothing.
    assert min(outcomes.values()) > COUNT // 20
    assert read(PAGE_REQUEST, contract).seed == 123
