"""Requests for tests, from the bytes on the wire to checked values."""

from __future__ import annotations

import json
from typing import Any, Final

from translators.body import parse_object
from translators.contract import DOCUMENTED, SERVER, Contract
from translators.request import Envelope, Parameters, read_envelope, read_parameters

BODY_LIMIT: Final = 40 * 1024 * 1024
BOTH: Final = [DOCUMENTED, SERVER]


def envelope_of(
    body: bytes,
    contract: Contract = DOCUMENTED,
    *,
    dialect: bool = True,
    body_limit: int = BODY_LIMIT,
) -> Envelope:
    """The envelope of raw body bytes."""
    return read_envelope(
        parse_object(body, contract), contract, body_limit=body_limit, dialect=dialect
    )


def read(
    body: bytes, contract: Contract = DOCUMENTED, *, dialect: bool = True, recompute: bool = False
) -> Parameters:
    """The parameters of raw body bytes."""
    envelope = envelope_of(body, contract, dialect=dialect)
    return read_parameters(envelope, contract, is_recompute=recompute)


def with_parameters(literals: dict[str, str]) -> bytes:
    """A body whose parameters are these, each a JSON literal exactly as it stands."""
    members = ",".join(f"{json.dumps(name)}:{literal}" for name, literal in literals.items())
    return f'{{"text_input":"x","parameters":{{{members}}}}}'.encode()


def read_one(name: str, literal: str, contract: Contract) -> Parameters:
    """The parameters of a request with one of them; with the recompute header."""
    return read(with_parameters({name: literal}), contract, recompute=True)


def body(**fields: Any) -> bytes:
    """A body with a text, and these fields at top level."""
    return json.dumps({"text_input": "x"} | fields).encode()
