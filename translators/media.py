"""The list form of `text_input`: from its parts to what each media part asks for.

Pure: nothing is opened, resolved or decoded here. Two steps, because the text
is checked before the media (contract §1): `read_parts` looks at the parts'
shape, `read_source` at where one medium is to come from. Source: contract §6.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from translators.body import json_type, shown
from translators.errors import InvalidInput
from translators.media_formats import MAX_ITEMS, MIB, RULES, MediaKind, formats_of, rule_of
from translators.media_urls import HostPolicy, MediaRefused, MediaUrl, parse_url

_KIND_OF_FIELD: Final = {row.field: row.kind for row in RULES}
_PART_TYPES: Final = ("text", *_KIND_OF_FIELD)
_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]{0,31}):")
_DATA_HEAD: Final = re.compile(r"data:([^;,]{0,64});base64,", re.IGNORECASE)
_DATA_HEAD_LENGTH: Final = 96
_PATH_LENGTH: Final = 4095
"""Characters of the longest path: Linux's PATH_MAX without the byte that ends it."""


@dataclass(frozen=True, slots=True)
class TextPart:
    """Text, in its place between the media."""

    text: str


@dataclass(frozen=True, slots=True)
class MediaPart:
    """One medium, in its place between the texts."""

    index: int
    """Its place in the client's list."""
    kind: MediaKind
    value: str
    """URL, path or base64, as the client wrote it."""


Part = TextPart | MediaPart


@dataclass(frozen=True, slots=True)
class LocalSource:
    """A file below the directory of media files."""

    components: tuple[str, ...]
    """The path below that directory, never empty, without `.` and `..`."""


@dataclass(frozen=True, slots=True)
class InlineSource:
    """Base64 in the request itself."""

    value: str
    start: int
    """Where in `value` the base64 begins."""

    @property
    def size(self) -> int:
        """Bytes after decoding."""
        length = len(self.value) - self.start
        return length // 4 * 3 - self.value[-2:].count("=")


Source = MediaUrl | LocalSource | InlineSource


@contextmanager
def named(index: int) -> Iterator[None]:
    """Turn a broken rule into the client's error about the part with this index."""
    try:
        yield
    except MediaRefused as refused:
        raise InvalidInput(f'"text_input[{index}]" {refused}') from None


def read_parts(parts: Sequence[Any]) -> tuple[Part, ...]:
    """The parts of a list, checked for shape, in order.

    Raises InvalidInput with the index of the first part that is wrong.
    """
    if not parts:
        raise InvalidInput('"text_input" must not be an empty list')
    found: list[Part] = []
    media = 0
    for index, part in enumerate(parts):
        with named(index):
            item = _read_part(index, part)
            media += isinstance(item, MediaPart)
            if media > MAX_ITEMS:
                raise MediaRefused(f"is one media item too many, at most {MAX_ITEMS} fit")
        found.append(item)
    return tuple(found)


def _read_part(index: int, part: Any) -> Part:
    if not isinstance(part, dict):
        raise MediaRefused(f"must be an object with a type, got {json_type(part)}")
    field = part.get("type")
    if field not in _PART_TYPES:
        choices = ", ".join(_PART_TYPES)
        raise MediaRefused(f"must have one of the types {choices}, got {shown(field)}")
    value = part.get(field)
    if field == "text":
        if not isinstance(value, str) or not value:
            raise MediaRefused("must have a non-empty string text")
        return TextPart(value)
    if isinstance(value, dict):
        value = value.get("url")
    if not isinstance(value, str) or not value:
        raise MediaRefused(f'must have a non-empty {field}: a string or {{"url": string}}')
    return MediaPart(index, _KIND_OF_FIELD[field], value)


def check_modalities(parts: Iterable[Part], most: Mapping[MediaKind, int]) -> None:
    """InvalidInput for the first part that the model cannot take.

    `most` tells how many items of each kind fit one request; a kind that the
    model does not have is absent or 0.
    """
    seen: dict[MediaKind, int] = {}
    for part in parts:
        if isinstance(part, TextPart):
            continue
        kind, limit = part.kind, most.get(part.kind, 0)
        seen[kind] = seen.get(kind, 0) + 1
        with named(part.index):
            if limit == 0:
                raise MediaRefused(f"holds {kind.value}, which the model does not take")
            if seen[kind] > limit:
                raise MediaRefused(
                    f"is one {kind.value} too many: the model takes {limit} in a request"
                )


def check_texts(parts: Sequence[Part], placeholders: Collection[str]) -> None:
    """InvalidInput for the first text that a model would take for the place of a medium.

    Beside a medium only: it would be shown there, not where it stands. Texts that
    follow each other may become one in the prompt, so they are read as one.
    """
    if not placeholders or all(isinstance(part, TextPart) for part in parts):
        return
    longest = max(map(len, placeholders))
    before = ""
    for index, part in enumerate(parts):
        if isinstance(part, MediaPart):
            before = ""
            continue
        text = before + part.text
        found = next((held for held in placeholders if held in text), None)
        if found is not None:
            raise InvalidInput(_holds(index, found))
        before = text[-longest:]


def check_no_text(parts: Iterable[object], placeholder: str) -> None:
    """InvalidInput for the first text that holds a model's placeholder; other parts are media."""
    for index, part in enumerate(parts):
        if isinstance(part, TextPart) and placeholder in part.text:
            raise InvalidInput(_holds(index, placeholder))


def _holds(index: int, placeholder: str) -> str:
    return f'"text_input[{index}]" holds "{placeholder}", which marks a medium for this model'


def read_source(part: MediaPart, hosts: HostPolicy, roots: Sequence[str]) -> Source:
    """Where a medium is to come from. MediaRefused when it may not.

    `roots` are the spellings of the directory of media files. What is neither
    URL nor path is base64; base64 never holds a dot, and a path needs one.
    """
    value = part.value
    if value[0].isspace():
        raise MediaRefused("begins with a space or a line break")
    scheme = _SCHEME.match(value)
    if scheme is None:
        if "." in value:
            return _local(value, part.kind, roots)
        return _inline(value, 0, part.kind)
    match scheme[1].lower():
        case "http" | "https":
            url = parse_url(value)
            hosts.check_host(url.host)
            if url.address is not None:
                hosts.check_address(url.address)
            return url
        case "data":
            return _inline(value, _after_data_head(value, part.kind), part.kind)
        case "file" if value[5:8] == "///":
            return _local(value[7:], part.kind, roots)
    raise MediaRefused("gives a URL that is not http://, https://, data: or file:///")


def _after_data_head(value: str, kind: MediaKind) -> int:
    head = _DATA_HEAD.match(value[:_DATA_HEAD_LENGTH])
    if head is None:
        raise MediaRefused("gives a data URL that is not data:TYPE;base64,DATA")
    types = [name for row in formats_of(kind) for name in row.types]
    if head[1].lower() not in types:
        raise MediaRefused(f"gives a data URL of another type than {', '.join(types)}")
    return head.end()


def _inline(value: str, start: int, kind: MediaKind) -> InlineSource:
    source = InlineSource(value, start)
    length = len(value) - start
    if start and (length == 0 or length % 4):
        raise MediaRefused("gives a data URL whose data are empty, cut off or not plain base64")
    if length == 0 or length % 4:
        raise MediaRefused("is neither a URL nor a path with a dot, nor base64")
    check_size(source.size, kind)
    return source


def check_size(size: int, kind: MediaKind) -> None:
    """MediaRefused when one item of this kind must not have this many bytes."""
    limit = rule_of(kind).limit
    if size > limit:
        raise MediaRefused(f"is larger than {limit // MIB} MB, the most for {kind.value}")
    if size == 0:
        raise MediaRefused("is empty")


def _local(path: str, kind: MediaKind, roots: Sequence[str]) -> LocalSource:
    _check_path(path)
    components = below(path, roots)
    if not components:
        if path.startswith("//"):
            raise MediaRefused("begins with //: a URL begins with http:// or https://")
        raise MediaRefused("gives a path outside the directory of media files")
    suffixes = tuple(name for row in formats_of(kind) for name in row.suffixes)
    if not components[-1].lower().endswith(suffixes):
        raise MediaRefused(f"gives a file whose name does not end in {', '.join(suffixes)}")
    return LocalSource(components)


def _check_path(path: str) -> None:
    if len(path) > _PATH_LENGTH:
        raise MediaRefused(
            f"gives a path of {len(path)} characters, at most {_PATH_LENGTH}; "
            "what holds a dot is read as a path"
        )
    if not path.startswith("/"):
        raise MediaRefused(
            "holds a dot, which base64 does not, but begins neither with / like a path "
            "nor with http:// or https:// like a URL"
        )
    if not path.isprintable() or "\\" in path:
        raise MediaRefused("gives a path with a control character or a backslash")
    names = path.split("/")
    if ".." in names:
        raise MediaRefused("gives a path with ..")
    if names[-1] in ("", "."):
        raise MediaRefused("gives a path that ends in /, which names no file")


def below(path: str, roots: Iterable[str]) -> tuple[str, ...] | None:
    """The names that lead from one of `roots` to `path`; None when it lies below none."""
    names = _names(path)
    for root in roots:
        start = _names(root)
        if path.startswith("/") and names[: len(start)] == start:
            return names[len(start) :]
    return None


def _names(path: str) -> tuple[str, ...]:
    return tuple(name for name in path.split("/") if name not in ("", "."))
