"""Detokenizers: the text is whole, and never half a character is shown."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models
from tokenizers.decoders import DecodeStream

from proxy.engines.detokenizer import (
    Detokenizer,
    Detokenizers,
    PieceDetokenizer,
    StreamDetokenizer,
    WindowDetokenizer,
)

Pieces = Sequence[bytes]


def _byte_letters() -> dict[int, str]:
    """The letter that a byte-level vocabulary writes for each byte."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in plain]
    return {byte: chr(byte) for byte in plain} | {b: chr(256 + n) for n, b in enumerate(others)}


LETTERS = _byte_letters()


class FastTokenizer:
    """What the gateway sees of a Hugging Face tokenizer with a `tokenizers` backend."""

    def __init__(self, backend: Tokenizer) -> None:
        self._tokenizer = backend


class SlowTokenizer:
    """A tokenizer without such a backend: nothing but `decode`. A negative id is special."""

    def __init__(self, pieces: Pieces) -> None:
        self._pieces = pieces

    def decode(self, ids: list[int], *, skip_special_tokens: bool) -> str:
        assert skip_special_tokens
        return b"".join(self._pieces[i] for i in ids if i >= 0).decode("utf-8", "replace")


def byte_level(pieces: Pieces) -> Tokenizer:
    """A real byte-level tokenizer with one token per piece."""
    words = {"".join(LETTERS[byte] for byte in piece): n for n, piece in enumerate(pieces)}
    backend = Tokenizer(models.WordLevel(vocab=words, unk_token=next(iter(words))))
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<special>"])
    return backend


def byte_fallback(words: Sequence[str]) -> Tokenizer:
    """A real tokenizer in the way of Llama 2: words, and one token for each byte."""
    vocab = {f"<0x{byte:02X}>": byte for byte in range(256)}
    vocab |= {word: 256 + n for n, word in enumerate(words)}
    backend = Tokenizer(models.BPE(vocab=vocab, merges=[], byte_fallback=True))
    backend.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return backend


def pushed(detokenizer: Detokenizer, ids: Sequence[int]) -> list[str]:
    return [detokenizer.push(token_id) for token_id in ids]


def cut(data: bytes, cuts: set[int]) -> list[bytes]:
    edges = [0, *sorted(at for at in cuts if at < len(data)), len(data)]
    return [data[a:b] for a, b in pairwise(edges) if a < b]


def after(tokenizer: Any, prompt: Sequence[int]) -> Detokenizer:
    return Detokenizers(tokenizer).after(prompt)


def both_kinds(pieces: Pieces, prompt: Sequence[int]) -> list[Detokenizer]:
    """The detokenizers of a fast and of a slow tokenizer with these tokens."""
    unique = list(dict.fromkeys(pieces))
    assert unique == list(pieces), "the caller numbers the pieces"
    fast = after(FastTokenizer(byte_level(pieces)), prompt)
    slow = after(SlowTokenizer(pieces), prompt)
    assert isinstance(fast, PieceDetokenizer)
    assert isinstance(slow, WindowDetokenizer)
    return [fast, slow]


def numbered(*texts: list[bytes]) -> tuple[list[bytes], list[list[int]]]:
    """Pieces without doubles, and each text as numbers of pieces."""
    unique = list(dict.fromkeys(piece for pieces in texts for piece in pieces))
    return unique, [[unique.index(piece) for piece in pieces] for pieces in texts]


# Characters of one to four bytes, joined emoji, right-to-left; no U+FFFD.
TEXT = st.text(st.sampled_from("a b}é你好😀\u200d👩🏽म्א\n"), max_size=40) | st.text(
    st.characters(codec="utf-8", exclude_characters="\ufffd"), max_size=40
)
CUTS = st.sets(st.integers(1, 120), max_size=60)


@given(TEXT, CUTS, TEXT.filter(bool), CUTS)
def test_the_text_is_whole_and_never_half_a_character(
    text: str, cuts: set[int], prompt_text: str, prompt_cuts: set[int]
) -> None:
    pieces, (ids, prompt) = numbered(
        cut(text.encode(), cuts), cut(prompt_text.encode(), prompt_cuts)
    )
    for detokenizer in both_kinds(pieces, prompt):
        shown = pushed(detokenizer, ids)
        assert "".join(shown) == text
        assert not any("\ufffd" in part for part in shown)
        assert detokenizer.flush() == ""


@given(TEXT, CUTS)
def test_each_character_comes_with_the_token_that_completes_it(text: str, cuts: set[int]) -> None:
    pieces, (ids, prompt) = numbered(cut(text.encode(), cuts), [b"go"])
    for detokenizer in both_kinds(pieces, prompt):
        so_far, seen = b"", ""
        for token_id in ids:
            so_far += pieces[token_id]
            seen += detokenizer.push(token_id)
            whole = so_far.decode("utf-8", "ignore")
            # A token that ends inside a character waits as a whole.
            assert seen == whole if whole.encode() == so_far else whole.startswith(seen)


@given(st.binary(max_size=40), CUTS)
def test_bytes_that_are_no_text_become_replacement_characters(data: bytes, cuts: set[int]) -> None:
    pieces, (ids, prompt) = numbered(cut(data, cuts), [b"go"])
    for detokenizer in both_kinds(pieces, prompt):
        shown = "".join(pushed(detokenizer, ids)) + detokenizer.flush()
        assert shown == data.decode("utf-8", "replace")


@given(TEXT.filter(bool), CUTS)
def test_a_half_character_at_the_end_is_flushed(text: str, cuts: set[int]) -> None:
    data = text.encode() + "好".encode()[:2]
    pieces, (ids, prompt) = numbered(cut(data, cuts), [b"go"])
    for detokenizer in both_kinds(pieces, prompt):
        shown = "".join(pushed(detokenizer, ids))
        assert text.startswith(shown)
        assert shown + detokenizer.flush() == text + "\ufffd"


@pytest.mark.parametrize("prompt", ["a\ufffd", "\ufffd", "\ufffd\ufffd\ufffd b \ufffd"])
def test_a_prompt_that_ends_with_a_replacement_character_stays_out(prompt: str) -> None:
    pieces, (ids, prompt_ids) = numbered(
        [b" we", b"ll \xe4\xbd", b"\xa0"], cut(prompt.encode(), set(range(40)))
    )
    for detokenizer in both_kinds(pieces, prompt_ids):
        assert pushed(detokenizer, ids) == [" we", "", "ll 你"]


@pytest.mark.parametrize("kind", [0, 1])
def test_special_tokens_are_empty(kind: int) -> None:
    pieces = [b"go", b"on", "你".encode()[:1], "你".encode()[1:]]
    special = len(pieces) if kind == 0 else -1
    detokenizer = both_kinds(pieces, [0])[kind]
    ids = [special, 1, special, special, 2, special, 3, special]
    assert pushed(detokenizer, ids) == ["", "on", "", "", "", "", "你", ""]
    assert detokenizer.flush() == ""


@pytest.mark.parametrize("prompt", [[], [0] * 100, [4], [0, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4]])
def test_any_prompt_primes(prompt: list[int]) -> None:
    pieces = [b"go", b" on", b"a", b"b"]
    detokenizer = after(FastTokenizer(byte_level(pieces)), prompt)
    assert pushed(detokenizer, [1, 2, 3]) == [" on", "a", "b"]


def test_a_long_prompt_is_not_decoded_as_a_whole() -> None:
    decoded = []

    class Watched(SlowTokenizer):
        def decode(self, ids: list[int], *, skip_special_tokens: bool) -> str:
            decoded.append(len(ids))
            return super().decode(ids, skip_special_tokens=skip_special_tokens)

    pieces, (ids, prompt) = numbered([b"x", b"y"], cut(("你好" * 500).encode(), set(range(3000))))
    detokenizer = after(Watched(pieces), prompt)
    assert pushed(detokenizer, ids) == ["x", "y"]
    assert max(decoded) <= 12


@given(
    st.lists(
        st.sampled_from([b"a", b" b", b"\xe4", b"\xbd\xa0", b"\xf0\x9f", b"\xff"]), max_size=30
    )
)
def test_pieces_come_as_from_decode_stream(parts: list[bytes]) -> None:
    pieces, (ids,) = numbered([b"go", *parts])
    backend = byte_level(pieces)
    stream = StreamDetokenizer(backend, [0])
    found = after(FastTokenizer(backend), [0])
    assert pushed(found, ids) == pushed(stream, ids)
    assert found.flush() == stream.flush()


def test_a_token_is_decoded_once_for_all_sequences() -> None:
    decoded: list[list[int]] = []

    class Watched:
        decoder = decoders.ByteLevel()

        def decode(self, ids: list[int], *, skip_special_tokens: bool) -> str:
            assert skip_special_tokens
            decoded.append(list(ids))
            return "x"

    Watched.__module__ = "tokenizers"
    made = Detokenizers(SimpleNamespace(_tokenizer=Watched()))
    assert [pushed(made.after([5]), [1, 2, 1]) for _ in range(2)] == [["x", "x", "x"]] * 2
    assert decoded == [[1], [2]]


# Byte fallback: a run of byte tokens that is no text spoils what was text before it.
A, LATIN, HAN = 0x41, 256, "你".encode()


def fallback(prompt: list[int], words: Sequence[str] = ("▁a", "b")) -> StreamDetokenizer:
    detokenizer = after(FastTokenizer(byte_fallback(words)), prompt)
    assert isinstance(detokenizer, StreamDetokenizer)
    return detokenizer


def test_byte_fallback_decode_stream_fails_as_we_think() -> None:
    backend = byte_fallback(["▁a", "b"])
    stream = DecodeStream(ids=[256], skip_special_tokens=True)
    assert stream.step(backend, A) == "A"
    assert stream.step(backend, 0xE4) is None
    with pytest.raises(Exception, match="Invalid prefix"):
        stream.step(backend, 257)


def test_byte_fallback_goes_on_after_bytes_that_are_no_text() -> None:
    detokenizer = fallback([256])
    assert pushed(detokenizer, [A, 0xE4, 257]) == ["A", "", "\ufffdb"]
    assert pushed(detokenizer, [256, *HAN, 257]) == [" a", "", "", "你", "b"]
    assert detokenizer.flush() == ""


def test_byte_fallback_window_does_the_same() -> None:
    backend = byte_fallback(["▁a", "b"])

    def decode(ids: list[int]) -> str:
        return str(backend.decode(ids, skip_special_tokens=True))

    detokenizer = WindowDetokenizer(decode, [256])
    assert pushed(detokenizer, [A, 0xE4, 257, 256]) == ["A", "", "\ufffdb", " a"]


def test_byte_fallback_keeps_the_space_of_the_first_word() -> None:
    assert pushed(fallback([257]), [256, 257]) == [" a", "b"]
    assert pushed(fallback([]), [256, 256]) == ["a", " a"]


@given(st.lists(st.sampled_from("aé你😀 "), max_size=20).map("".join), st.data())
def test_byte_fallback_text_is_whole(text: str, data: st.DataObject) -> None:
    words = ("▁a", "b", "é", "你")
    ids: list[int] = []
    for character in text:
        known = words.index(character) + 256 if character in words else None
        as_word = known is not None and data.draw(st.booleans())
        ids += [known] if as_word and known is not None else character.encode()
    detokenizer = fallback([257], words)
    shown = pushed(detokenizer, ids)
    assert "".join(shown) == text
    assert not any("\ufffd" in part for part in shown)


@given(st.lists(st.integers(0, 257), max_size=30))
def test_byte_fallback_never_fails_and_ends_as_the_whole_does(ids: list[int]) -> None:
    backend = byte_fallback(["▁a", "b"])
    detokenizer = fallback([257])
    shown = "".join(pushed(detokenizer, [*ids, 257, 257]))
    assert shown.endswith("b")
    if "\ufffd" not in shown:
        assert "b" + shown == backend.decode([257, *ids, 257, 257])


def test_an_unknown_token_id_is_empty() -> None:
    detokenizer = after(FastTokenizer(byte_level([b"go", b"on"])), [0])
    assert pushed(detokenizer, [9999, 1]) == ["", "on"]


def test_a_tokenizer_without_a_backend_gets_a_window() -> None:
    tokenizer: Any = SlowTokenizer([b"go", b"on"])
    assert isinstance(after(tokenizer, [0]), WindowDetokenizer)
