"""Opening a file below the directory of media files, and no other (contract §6).

The path is walked one name at a time, each below the descriptor of the one
before. A link is read and walked the same way, starting again at the directory,
so it can lead nowhere else; nothing is opened for reading before it is known to
be a plain file. Whatever is renamed or replaced meanwhile, no step looks at a
path that an earlier step has checked by name.
"""

from __future__ import annotations

import os
import stat
from collections import deque
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from proxy.media.content import Content
from translators.media import below, check_size
from translators.media_formats import MediaKind
from translators.media_urls import MediaRefused

_LOOK: Final = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
"""A descriptor to look at a file with: opens neither a pipe nor a device."""
_READ: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
_MAX_LINKS: Final = 8
_MISSING: Final = "gives a path at which there is no readable media file"


class MediaRoot:
    """The directory of media files, by every spelling it has."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.spellings = tuple(dict.fromkeys((os.path.normpath(path), os.path.realpath(path))))

    def exists(self) -> bool:
        """Whether there is such a directory."""
        return Path(self.path).is_dir()

    def open(self, components: tuple[str, ...], kind: MediaKind) -> Content:
        """The content of a plain file below the root. Blocks: call it in a thread.

        MediaRefused when there is none, or when it is too large, or when it has
        a second name, which may stand outside.
        """
        try:
            with ExitStack() as stack:
                return self._open(stack, components, kind)
        except (OSError, ValueError):
            raise MediaRefused(_MISSING) from None

    def _open(self, stack: ExitStack, components: tuple[str, ...], kind: MediaKind) -> Content:
        # The root itself may be a link: it is the operator's.
        root = _look(stack, self.path, None, _LOOK & ~os.O_NOFOLLOW)
        walk = _Walk(stack, root, self.spellings)
        parent, name, looked = walk.to_file(components)
        _check_plain(looked, kind)
        fd = os.open(name, _READ, dir_fd=parent)
        try:
            opened = os.fstat(fd)
            _check_same(opened, looked)
            _check_plain(opened, kind)
            return Content(opened.st_size, fd=fd)
        except BaseException:
            os.close(fd)
            raise


def _look(stack: ExitStack, name: str, parent: int | None, flags: int = _LOOK) -> int:
    fd = os.open(name, flags, dir_fd=parent)
    stack.callback(os.close, fd)
    return fd


class _Walk:
    """From the root to a file, through links that stay below the root."""

    def __init__(self, stack: ExitStack, root: int, spellings: tuple[str, ...]) -> None:
        self._stack = stack
        self._spellings = spellings
        self._directories = [root]
        self._links = 0

    def to_file(self, components: tuple[str, ...]) -> tuple[int, str, os.stat_result]:
        """The last directory, the name in it, and what stands there."""
        names = deque(components)
        while names:
            name = names.popleft()
            if name == "..":
                self._up()
                continue
            parent = self._directories[-1]
            fd = _look(self._stack, name, parent)
            found = os.fstat(fd)
            if stat.S_ISLNK(found.st_mode):
                names.extendleft(reversed(self._follow(fd, last=not names)))
            elif not names:
                return parent, name, found
            elif stat.S_ISDIR(found.st_mode):
                self._directories.append(fd)
            else:
                break
        raise MediaRefused(_MISSING)

    def _up(self) -> None:
        if len(self._directories) == 1:
            raise MediaRefused(_MISSING)
        self._directories.pop()

    def _follow(self, link: int, *, last: bool) -> tuple[str, ...]:
        """The names that a link stands for; the last one of a path stands for a file."""
        self._links += 1
        if self._links > _MAX_LINKS:
            raise MediaRefused(_MISSING)
        target = os.readlink("", dir_fd=link)
        if last and target.endswith(("/", "/.")):
            raise MediaRefused(_MISSING)
        if not target.startswith("/"):
            return tuple(name for name in target.split("/") if name not in ("", "."))
        names = below(target, self._spellings)
        if names is None:
            raise MediaRefused(_MISSING)
        del self._directories[1:]
        return names


def _check_same(opened: os.stat_result, looked: os.stat_result) -> None:
    if (opened.st_dev, opened.st_ino) != (looked.st_dev, looked.st_ino):
        raise MediaRefused(_MISSING)


def _check_plain(found: os.stat_result, kind: MediaKind) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise MediaRefused(_MISSING)
    if found.st_nlink != 1:
        raise MediaRefused("gives a file that has more than one name")
    check_size(found.st_size, kind)
