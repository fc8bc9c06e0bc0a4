"""All media of one request: fetched side by side, checked, and gone again at its end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Final, NamedTuple

from proxy.media.content import Content, DiskReserve, Medium, PromptPart, Spool
from proxy.media.download import Downloader
from proxy.media.inline import decode
from proxy.media.local import MediaRoot
from proxy.media.turns import Turns, busy
from proxy.threads import joined
from translators.media import (
    InlineSource,
    LocalSource,
    MediaPart,
    Part,
    Source,
    TextPart,
    check_modalities,
    check_size,
    named,
    read_source,
)
from translators.media_bombs import FULL_IMAGES, DecodedLimits
from translators.media_formats import (
    HEAD_BYTES,
    MAX_REQUEST_BYTES,
    MIB,
    MediaFormat,
    MediaKind,
    formats_of,
    rule_of,
    sniff,
)
from translators.media_urls import HostPolicy, MediaRefused, MediaUrl

log = logging.getLogger(__name__)

_AT_ONCE: Final = 4
"""Media of one request that are fetched at the same time."""


@dataclass(frozen=True, slots=True)
class DeskLimits:
    """What requests with media may use."""

    concurrency: int
    """Requests whose media are fetched and held at the same time."""
    total_time: float
    """Seconds for all media of one request, waiting for its turn included."""
    memory: int
    """Bytes of one medium that are kept in memory; more goes to disk."""
    directory: str | None
    """Where that disk is; None: the system's temporary directory."""
    decoded: DecodedLimits


class _Job(NamedTuple):
    """One medium that is to be fetched."""

    part: MediaPart
    source: Source

    def disk_needed(self, memory: int) -> int:
        """Bytes that may go to disk. Local files stay where they are."""
        if isinstance(self.source, InlineSource):
            return self.source.size if self.source.size > memory else 0
        return rule_of(self.part.kind).limit if isinstance(self.source, MediaUrl) else 0


class MediaDesk:
    """Serves requests with media, a bounded number at a time."""

    def __init__(
        self, hosts: HostPolicy, root: MediaRoot, downloader: Downloader, limits: DeskLimits
    ) -> None:
        self.limits = limits
        self.reserve = DiskReserve(limits.directory)
        self._hosts = hosts
        self._root = root
        self._downloader = downloader
        self._turns = Turns(limits.concurrency)

    @asynccontextmanager
    async def fetched(
        self, parts: Sequence[Part], most: Mapping[MediaKind, int]
    ) -> AsyncIterator[list[PromptPart]]:
        """The parts with their media, until the end of the block.

        `most` tells what the model takes. Whatever can be refused without
        opening anything is refused first. Raises InvalidInput naming the part,
        or ServiceUnavailable.
        """
        check_modalities(parts, most)
        jobs = [self._job(part) for part in parts if isinstance(part, MediaPart)]
        if not jobs:
            yield [part for part in parts if isinstance(part, TextPart)]
            return
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.limits.total_time
        begun = loop.time()
        hosts = {job.source.host for job in jobs if isinstance(job.source, MediaUrl)}
        async with self._turns.turn(hosts, deadline):
            late = loop.time() - begun > self.limits.total_time / 2
            needed = sum(job.disk_needed(self.limits.memory) for job in jobs)
            with self.reserve.hold(min(needed, MAX_REQUEST_BYTES)):
                batch = _Batch(self.limits, self._root, self._downloader)
                try:
                    media = await batch.fetch(jobs, deadline - loop.time(), late=late)
                    yield [next(media) if isinstance(part, MediaPart) else part for part in parts]
                finally:
                    batch.close()

    def _job(self, part: MediaPart) -> _Job:
        with named(part.index):
            return _Job(part, read_source(part, self._hosts, self._root.spellings))

    def report(self, most: Mapping[MediaKind, int]) -> None:
        """Tell the operator what the media that the model takes will lack here."""
        if any(most.values()) and not self._root.exists():
            log.info("media_root %s is not there: no local media are served", self._root.path)
        self._warn_about_disk(most)

    def _warn_about_disk(self, most: Mapping[MediaKind, int]) -> None:
        """By the page's formula."""
        largest = max((rule_of(kind).limit for kind, limit in most.items() if limit), default=0)
        needed, free = self.reserve.needed(largest, self.limits.concurrency), self.reserve.free()
        if free < needed:
            log.warning(
                "media may need %d MB of disk in %s, %d MB are free: requests that do not fit "
                "will get 503 (see media_concurrency, media_spool_dir)",
                needed // MIB,
                self.reserve.directory,
                free // MIB,
            )

    async def close(self) -> None:
        """Close every connection."""
        await self._downloader.close()


class _Batch:
    """The media of one request."""

    def __init__(self, limits: DeskLimits, root: MediaRoot, downloader: Downloader) -> None:
        self._limits = limits
        self._root = root
        self._downloader = downloader
        self._at_once = asyncio.Semaphore(_AT_ONCE)
        self._contents: list[Content] = []
        self._left = MAX_REQUEST_BYTES
        self._pixels = 0

    async def fetch(self, jobs: Sequence[_Job], seconds: float, *, late: bool) -> Iterator[Medium]:
        """All media, in order; of several that fail, the first one's error is raised.

        With `late` most of the time went by in the queue: that is not the host's fault.
        """
        tasks = [asyncio.create_task(self._fetch(job)) for job in jobs]
        try:
            await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_EXCEPTION)
            for task in tasks:
                if task.done():
                    task.result()
            for job, task in zip(jobs, tasks, strict=True):
                if late and not task.done():
                    raise busy()
                with named(job.part.index):
                    self._check_done(task)
            return iter([task.result() for task in tasks])
        finally:
            await _ended(tasks)

    def _check_done(self, task: asyncio.Task[Medium]) -> None:
        if not task.done():
            raise MediaRefused(f"could not be fetched within {self._limits.total_time:g} s")

    async def _fetch(self, job: _Job) -> Medium:
        part = job.part
        async with self._at_once:
            with named(part.index), _told(job.source):
                content = await self._content(part.kind, job.source)
                file_format, pixels = await joined(lambda: self._checked(content, part.kind))
                self._take_pixels(pixels)
                return Medium(part.index, part.kind, file_format, content)

    async def _content(self, kind: MediaKind, source: Source) -> Content:
        if isinstance(source, LocalSource):
            content = await joined(lambda: self._kept(self._root.open(source.components, kind)))
            self.take(content.size)
            return content
        receiver = _Receiver(self, kind, Spool(self._limits.directory, self._limits.memory))
        try:
            if isinstance(source, InlineSource):
                await decode(source, receiver)
            else:
                await self._download(source, receiver)
            return self._kept(await receiver.spool.finish())
        finally:
            receiver.spool.close()

    def _kept(self, content: Content) -> Content:
        """Freed with the others, whatever comes next. Also called in threads."""
        self._contents.append(content)
        return content

    async def _download(self, url: MediaUrl, receiver: _Receiver) -> None:
        async with self._downloader.open(url) as download:
            if download.declared_size is not None:
                check_size(download.declared_size, receiver.kind)
            async for chunk in download.chunks():
                await receiver.write(chunk)

    def _checked(self, content: Content, kind: MediaKind) -> tuple[MediaFormat, int]:
        """In a thread: the format, and how many pixels there are to decode."""
        check_size(content.size, kind)
        file_format = known_format(content.read_at(0, HEAD_BYTES), kind)
        return file_format, self._limits.decoded.check(file_format, content.read_at, content.size)

    def _take_pixels(self, pixels: int) -> None:
        self._pixels += pixels
        most = FULL_IMAGES * self._limits.decoded.pixels
        if self._pixels > most:
            raise MediaRefused(f"brings the images of this request to more than {most} pixels")

    def take(self, size: int) -> None:
        """Count bytes of any medium of this request."""
        self._left -= size
        if self._left < 0:
            raise MediaRefused(
                f"brings the media of this request to more than {MAX_REQUEST_BYTES // MIB} MB"
            )

    def close(self) -> None:
        """Free all contents."""
        for content in self._contents:
            content.close()


class _Receiver:
    """What comes in for one medium: counted, and looked at as soon as it shows its format."""

    def __init__(self, batch: _Batch, kind: MediaKind, spool: Spool) -> None:
        self.kind = kind
        self.spool = spool
        self._batch = batch
        self._head = b""

    @property
    def size(self) -> int:
        return self.spool.size

    async def write(self, data: bytes) -> None:
        """MediaRefused as soon as it is too much, or of no accepted format."""
        check_size(self.size + len(data), self.kind)
        self._batch.take(len(data))
        if len(self._head) < HEAD_BYTES:
            self._head += data[:HEAD_BYTES]
            if len(self._head) >= HEAD_BYTES:
                known_format(self._head, self.kind)
        await self.spool.write(data)


def known_format(head: bytes, kind: MediaKind) -> MediaFormat:
    """The format of a file by its first bytes. MediaRefused unless it is one of this kind."""
    found = sniff(head)
    if found is None or found.kind is not kind:
        names = ", ".join(row.name for row in formats_of(kind))
        raise MediaRefused(f"is not one of {names}, by its content")
    return found


@contextmanager
def _told(source: Source) -> Iterator[None]:
    """Say of what was only taken for base64, being nothing else, that it was."""
    try:
        yield
    except MediaRefused as refused:
        if not isinstance(source, InlineSource) or source.start:
            raise
        raise MediaRefused(
            f"is neither a URL nor a path with a dot, and as base64 it {refused}"
        ) from None


async def _ended(tasks: Sequence[asyncio.Task[Medium]]) -> None:
    """Cancel what still runs and wait for its end."""
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
