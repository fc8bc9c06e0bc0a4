"""Stop words: the text before the first match, whatever the chunks, and nothing of the word."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from translators.stop_words import Matched, StopWords

# Few letters, so that words overlap each other and themselves.
TEXT = st.text("abc", max_size=30)
WORDS = st.lists(st.text("abc", min_size=1, max_size=5), min_size=1, max_size=4)


def shown(words: list[str], chunks: list[str]) -> tuple[list[str], bool]:
    """What a reader sees for each chunk, and whether a stop word ended it."""
    stop_words = StopWords(tuple(words))
    seen = []
    for chunk in chunks:
        text, stopped = stop_words.push(chunk)
        seen.append(text)
        if stopped:
            return seen, True
    return [*seen, stop_words.flush()], False


def first_match(words: list[str], text: str) -> int | None:
    """Where the word begins that is complete first, by trying every end in turn."""
    for end in range(1, len(text) + 1):
        starts = [end - len(word) for word in words if text[:end].endswith(word)]
        if starts:
            return min(starts)
    return None


@st.composite
def cut_text(draw: st.DrawFn) -> tuple[str, list[str]]:
    text = draw(TEXT)
    cuts = sorted(draw(st.sets(st.integers(0, len(text)), max_size=8)))
    edges = [0, *cuts, len(text)]
    return text, [text[a:b] for a, b in pairwise(edges)]


@settings(max_examples=500)
@given(WORDS, cut_text())
def test_the_text_ends_before_the_first_match_for_any_chunks(
    words: list[str], cut: tuple[str, list[str]]
) -> None:
    text, chunks = cut
    at = first_match(words, text)
    seen, stopped = shown(words, chunks)
    assert "".join(seen) == text[:at]
    assert stopped is (at is not None)


@given(WORDS, cut_text())
def test_what_is_shown_is_never_taken_back(words: list[str], cut: tuple[str, list[str]]) -> None:
    text, chunks = cut
    at = first_match(words, text)
    seen, _ = shown(words, chunks)
    for count in range(len(seen) + 1):
        assert text[:at].startswith("".join(seen[:count]))


@given(WORDS, cut_text())
def test_only_what_could_begin_a_word_is_held_back(
    words: list[str], cut: tuple[str, list[str]]
) -> None:
    _, chunks = cut
    stop_words = StopWords(tuple(words))
    pushed = seen = ""
    for chunk in chunks:
        pushed += chunk
        text, stopped = stop_words.push(chunk)
        seen += text
        if stopped:
            return
        held = pushed[len(seen) :]
        assert not held or any(word.startswith(held) for word in words)


def test_a_word_over_several_tokens_leaks_no_part() -> None:
    stop_words = StopWords(("END",))
    assert stop_words.push("fine E") == Matched("fine ", False)
    assert stop_words.push("N") == Matched("", False)
    assert stop_words.push("D. more") == Matched("", True)
    assert stop_words.flush() == ""


def test_a_word_that_begins_right_after_its_own_letter_leaks_no_part() -> None:
    stop_words = StopWords(("abc",))
    assert stop_words.push("aa") == Matched("a", False)
    assert stop_words.push("bc") == Matched("", True)


def test_a_false_beginning_comes_with_the_next_token() -> None:
    stop_words = StopWords(("END",))
    assert stop_words.push("E") == Matched("", False)
    assert stop_words.push("Nough") == Matched("ENough", False)
    assert stop_words.flush() == ""


def test_a_beginning_at_the_end_of_the_text_is_flushed_once() -> None:
    stop_words = StopWords(("END",))
    stop_words.push("the EN")
    assert stop_words.flush() == "EN"
    assert stop_words.flush() == ""


def test_the_word_complete_first_wins_however_the_tokens_cut() -> None:
    words = ["abcd", "bc"]
    assert shown(words, ["abcd"]) == (["a"], True)
    assert shown(words, ["abc", "d"]) == (["a"], True)


def test_of_words_complete_at_once_the_longest_is_cut() -> None:
    assert shown(["lo", "hello"], ["say hello"]) == (["say "], True)


def test_a_long_word_is_matched_in_little_work() -> None:
    stop_words = StopWords(("a" * 1023 + "b",) * 64)
    assert stop_words.push("a" * 2000).text == "a" * (2000 - 1023)
    assert stop_words.push("c") == Matched("a" * 1023 + "c", False)
