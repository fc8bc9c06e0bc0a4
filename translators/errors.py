"""Every answer that is not a success, as one exception tree.

    GatewayError
    ├── BadRequest            400  malformed HTTP-level input
    ├── AccessRefused              when API keys are set up
    │   ├── Unauthorized      401  no key, or an unknown one
    │   ├── Forbidden         403  the key of other routes
    │   └── TooManyRequests   429  this key's own limits
    ├── NotFound              404  model, path, method
    ├── BodyTooLarge          413  body over the limit (its JSON has another shape)
    ├── UnsupportedEncoding   415  request with Content-Encoding
    ├── InvalidInput          422  JSON, id, text_input, media, parameters
    ├── GenerationError       424  prompt too long, refused by the engine
    ├── IncompleteGeneration  500  engine failed, unknown id to stop
    │   ├── UnknownRequest    500  nothing to stop: the client's mistake, whatever the status
    │   └── GenerationTimeout 500  no token, or no end, in time
    └── ServiceUnavailable    503  starting, stopping, dead
        └── Overloaded        503  too many requests at once

Statuses and `error_type` are those of contract §1. The texts are ours; they
never hold a path, a traceback or a prompt.
"""

from __future__ import annotations

from typing import ClassVar

import orjson


class GatewayError(Exception):
    """A failure with a defined answer.

    `message` is shown to the client; `retry_after` (seconds) becomes the
    `Retry-After` header.
    """

    status: ClassVar[int] = 500
    error_type: ClassVar[str] = "Incomplete Generation"

    @property
    def refuses(self) -> bool:
        """Whether it says no to the client, which is not a failure on our side."""
        return self.status < 500 or self.status == 503

    @property
    def stream_text(self) -> str:
        """What the `server` contract writes into a broken stream (contract §8)."""
        return "Failed to get engine response"

    def __init__(self, message: str, *, retry_after: int | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.retry_after = retry_after

    def body(self) -> bytes:
        """The JSON body of a failure before the first byte (contract §1)."""
        return orjson.dumps({"error": self.message, "error_type": self.error_type})

    def openai_body(self) -> bytes:
        """The same failure as the OpenAI API words it."""
        error = {
            "message": self.message,
            "type": self.error_type,
            "param": None,
            "code": self.status,
        }
        return orjson.dumps({"error": error})


class BadRequest(GatewayError):
    """Malformed HTTP, or a body that does not arrive."""

    status = 400
    error_type = "Bad Request"


class AccessRefused(GatewayError):
    """What an API key, or the lack of one, does not open."""


class Unauthorized(AccessRefused):
    """API keys are set up, and none or an unknown one came."""

    status = 401
    error_type = "Unauthorized"


class Forbidden(AccessRefused):
    """An API key that opens other routes."""

    status = 403
    error_type = "Forbidden"


class TooManyRequests(AccessRefused):
    """The API key's own limits; with `Retry-After`."""

    status = 429
    error_type = "Too Many Requests"


class NotFound(GatewayError):
    """The model is not served, or there is no such route or method."""

    status = 404
    error_type = "NotFoundError"


class BodyTooLarge(GatewayError):
    """The body is over the limit; its JSON is `{"message": ...}`."""

    status = 413
    error_type = "Payload Too Large"

    def body(self) -> bytes:
        return orjson.dumps({"message": self.message})


class UnsupportedEncoding(GatewayError):
    """The request has a Content-Encoding."""

    status = 415
    error_type = "Unsupported Media Type"


class InvalidInput(GatewayError):
    """JSON, id, text_input, media or parameters are not as they must be."""

    status = 422
    error_type = "Input Validation Error"


class GenerationError(GatewayError):
    """The prompt is too long, or the engine refuses the request."""

    status = 424
    error_type = "Generation Error"


class IncompleteGeneration(GatewayError):
    """The engine failed, or a time limit ran out."""

    status = 500
    error_type = "Incomplete Generation"


class UnknownRequest(IncompleteGeneration):
    """No live request has the id that is to be stopped (contract §1: a 500)."""

    refuses = True


class GenerationTimeout(IncompleteGeneration):
    """One of the three clocks of contract §5 ran out."""

    def __init__(self, clock: str, seconds: float) -> None:
        super().__init__(f"{clock} of {seconds:g} s ran out")
        self.clock = clock

    @property
    def stream_text(self) -> str:
        return f"Engine callback timeout: {self.clock}"


class ServiceUnavailable(GatewayError):
    """Starting, shutting down, dead, or too many requests."""

    status = 503
    error_type = "Service Unavailable"


class Overloaded(ServiceUnavailable):
    """Too many requests at once."""
