"""The streaming path: tokens from the engine, frames to the client, whatever the format."""

from __future__ import annotations

from typing import Protocol

from aiohttp import web

from proxy.engines.stream import TokenStream
from proxy.frame_writer import FrameWriter
from proxy.metrics import Account
from translators.errors import GatewayError
from translators.tokens import Token


class FrameTranslator(Protocol):
    """One per request: tokens in, frames out (see `translators.triton_stream`)."""

    ended: bool
    """True once a last frame was made."""
    generated: int
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


async def stream_frames(
    stream: TokenStream, frames: FrameTranslator, writer: FrameWriter, account: Account
) -> web.StreamResponse:
    """Send each token as it comes, until the last, and account for the end."""
    try:
        await writer.start()
        async for tokens in stream:
            if not frames.generated:
                account.first_token()
            await writer.send(_encode(frames, tokens))
            if frames.ended:
                break
        else:
            await writer.send([frames.stopped()])
        account.succeeded()
        return await writer.finish()
    except GatewayError as error:
        account.broken(error)
        return await _fail(frames, writer, error)
    finally:
        account.generated(frames.generated)


def _encode(frames: FrameTranslator, tokens: list[Token]) -> list[bytes]:
    encoded = []
    for token in tokens:
        encoded.append(frames.frame(token))
        if frames.ended:
            break
    return encoded


async def _fail(
    frames: FrameTranslator, writer: FrameWriter, error: GatewayError
) -> web.StreamResponse:
    await writer.send([frames.failed(error)])
    if frames.fails_with_normal_end:
        return await writer.finish()
    return writer.drop()
