"""Tokens from the engine, frames or one answer to the client, whatever the format."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Final, Protocol

from aiohttp import web

from proxy.departure import ClientGone
from proxy.engines.stream import TokenStream
from proxy.frame_writer import FrameWriter
from proxy.logs import PRIVATE
from proxy.metrics import Account
from translators.errors import GatewayError, IncompleteGeneration
from translators.tokens import Token

log = logging.getLogger(__name__)

_BATCH: Final = 16 * 1024
"""Bytes of frames that are made before the client has taken those before them."""


class FrameTranslator(Protocol):
    """One per request: tokens in, frames out (see `translators.triton_stream`)."""

    ended: bool
    """True once a last frame was made."""

    @property
    def generated(self) -> int:
        """Tokens so far."""

    def frame(self, token: Token) -> bytes:
        """The frame of one token."""

    def stopped(self) -> bytes:
        """The last frame of a request that was stopped from outside."""

    def failed(self, error: GatewayError) -> bytes:
        """The last words of a stream that broke after its first byte."""

    @property
    def fails_with_normal_end(self) -> bool:
        """Whether `failed` is followed by a normal end instead of a dropped connection."""


class AnswerTranslator(Protocol):
    """One per request: tokens in, one answer out (see `translators.triton_generate`)."""

    ended: bool
    """True once nothing more is to be added."""

    @property
    def generated(self) -> int:
        """Tokens so far."""

    def add(self, token: Token) -> None:
        """One token."""

    def stopped(self) -> None:
        """The request was stopped from outside."""

    def body(self) -> bytes:
        """The answer."""


async def collect_answer(
    stream: TokenStream, answer: AnswerTranslator, account: Account
) -> web.Response:
    """Wait for the last token and answer with all of them; raises what the stream raises."""
    try:
        async for tokens in stream:
            if not answer.generated:
                account.first_token(tokens[0].waited)
            _add(answer, tokens)
            if answer.ended:
                break
        else:
            answer.stopped()
    finally:
        account.generated(answer.generated)
    account.succeeded()
    return web.Response(body=answer.body(), content_type="application/json")


def _add(answer: AnswerTranslator, tokens: list[Token]) -> None:
    for token in tokens:
        answer.add(token)
        if answer.ended:
            break


async def stream_frames(
    stream: TokenStream, frames: FrameTranslator, writer: FrameWriter, account: Account
) -> web.StreamResponse:
    """Send each token as it comes, until the last, and account for the end.

    Raises the stream's error when it is known before the first byte has left:
    then it is a plain answer (contract §1).
    """
    stream.raise_if_failed()
    await writer.start()
    try:
        await _send_all(stream, frames, writer, account)
        account.succeeded()
        return await writer.finish()
    except GatewayError as error:
        return await _fail(frames, writer, account, error)
    except ClientGone:
        raise
    except Exception:
        log.exception("a stream failed inside the gateway", extra=PRIVATE)
        inside = IncompleteGeneration("the request failed inside the gateway")
        return await _fail(frames, writer, account, inside)
    finally:
        account.generated(frames.generated)


async def _send_all(
    stream: TokenStream, frames: FrameTranslator, writer: FrameWriter, account: Account
) -> None:
    async for tokens in stream:
        if not frames.generated:
            account.first_token(tokens[0].waited)
            stream.hand_to(_fast_lane(stream, frames, writer))
        for batch in _encoded(frames, tokens):
            await writer.send(batch)
        if frames.ended:
            return
    if not frames.ended:
        await writer.send([frames.stopped()])


def _fast_lane(
    stream: TokenStream, frames: FrameTranslator, writer: FrameWriter
) -> Callable[[Token], bool]:
    """Frames written in the engine's own task, while the client reads and nothing waits."""

    def take(token: Token) -> bool:
        if not writer.clear:
            return False
        try:
            writer.put(frames.frame(token))
        except Exception:
            # The reader meets the same failure again, and answers it.
            return False
        if frames.ended:
            stream.stop()
        return True

    return take


def _encoded(frames: FrameTranslator, tokens: list[Token]) -> Iterator[list[bytes]]:
    """One frame per token, in batches that stay small however far the reader lags."""
    batch: list[bytes] = []
    size = 0
    for token in tokens:
        frame = frames.frame(token)
        batch.append(frame)
        size += len(frame)
        if frames.ended:
            break
        if size > _BATCH:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


async def _fail(
    frames: FrameTranslator, writer: FrameWriter, account: Account, error: GatewayError
) -> web.StreamResponse:
    account.broken(error)
    await writer.send([frames.failed(error)])
    if frames.fails_with_normal_end:
        return await writer.finish()
    return writer.drop()
