"""The error contract of contract §1: statuses, types and bodies."""

from __future__ import annotations

import json

import pytest

from translators import errors

# status and error_type by hand; 413 has a body of its own.
ANSWERS = [
    (errors.BadRequest, 400, "Bad Request"),
    (errors.Unauthorized, 401, "Unauthorized"),
    (errors.Forbidden, 403, "Forbidden"),
    (errors.NotFound, 404, "NotFoundError"),
    (errors.UnsupportedEncoding, 415, "Unsupported Media Type"),
    (errors.InvalidInput, 422, "Input Validation Error"),
    (errors.GenerationError, 424, "Generation Error"),
    (errors.IncompleteGeneration, 500, "Incomplete Generation"),
    (errors.TooManyRequests, 429, "Too Many Requests"),
    (errors.ServiceUnavailable, 503, "Service Unavailable"),
]


@pytest.mark.parametrize(("kind", "status", "error_type"), ANSWERS)
def test_an_error_is_an_answer(
    kind: type[errors.GatewayError], status: int, error_type: str
) -> None:
    error = kind('what "went" wrong: 你')
    assert error.status == status
    expected = f'{{"error":"what \\"went\\" wrong: 你","error_type":"{error_type}"}}'
    assert error.body() == expected.encode()
    assert error.retry_after is None
    assert error.stream_text == "Failed to get engine response"


def test_every_answer_is_listed_here() -> None:
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type)]
    own = {
        kind for kind in kinds if issubclass(kind, errors.GatewayError) and "status" in vars(kind)
    }
    listed = {kind for kind, _, _ in ANSWERS}
    assert own == listed | {errors.GatewayError, errors.BodyTooLarge}


def test_too_large_has_a_body_of_its_own() -> None:
    error = errors.BodyTooLarge("too much")
    assert (error.status, error.error_type) == (413, "Payload Too Large")
    assert json.loads(error.body()) == {"message": "too much"}


def test_when_to_come_back() -> None:
    assert errors.ServiceUnavailable("full", retry_after=3).retry_after == 3


@pytest.mark.parametrize(
    ("clock", "seconds", "text"),
    [
        ("client timeout", 10, "client timeout of 10 s ran out"),
        ("server tokenTimeout", 0.5, "server tokenTimeout of 0.5 s ran out"),
        ("server e2eTimeout", 65535, "server e2eTimeout of 65535 s ran out"),
    ],
)
def test_a_timeout_names_its_clock(clock: str, seconds: float, text: str) -> None:
    error = errors.GenerationTimeout(clock, seconds)
    assert error.status == 500
    assert error.error_type == "Incomplete Generation"
    assert error.message == text
    assert error.stream_text == f"Engine callback timeout: {clock}"
