"""The list form of text_input: parts, their order, and where each medium is to come from."""

from __future__ import annotations

from typing import Any

import pytest

from tests.media_support import data_url, image, png, text
from translators.contract import DOCUMENTED
from translators.errors import InvalidInput
from translators.media import (
    InlineSource,
    LocalSource,
    MediaPart,
    TextPart,
    check_modalities,
    check_no_text,
    check_texts,
    named,
    read_parts,
    read_source,
)
from translators.media_formats import MIB, RULES, MediaKind, rule_of
from translators.media_urls import HostPolicy, MediaRefused, MediaUrl, parse_hosts
from translators.request import Envelope, read_envelope

ROOTS = ("/data/multimodal_inputs", "/mnt/real")
HOSTS = HostPolicy(parse_hosts("a.example"))
IMAGE, VIDEO, AUDIO = MediaKind.IMAGE, MediaKind.VIDEO, MediaKind.AUDIO


def envelope(text_input: Any, *, body_limit: int = 1000, dialect: bool = True) -> Envelope:
    document = {"text_input": text_input}
    return read_envelope(document, DOCUMENTED, body_limit=body_limit, dialect=dialect)


def source(value: str, kind: MediaKind = IMAGE) -> object:
    return read_source(MediaPart(1, kind, value), HOSTS, ROOTS)


def refusal(value: str, kind: MediaKind = IMAGE) -> str:
    with pytest.raises(MediaRefused) as caught:
        source(value, kind)
    return str(caught.value)


def test_text_and_media_keep_their_order() -> None:
    parts = read_parts(
        [
            text("a"),
            image("/x.png"),
            {"type": "video_url", "video_url": {"url": "/x.mp4", "fps": 1}, "extra": [1]},
            text("b"),
            {"type": "audio_url", "audio_url": "/x.wav"},
        ]
    )
    assert parts == (
        TextPart("a"),
        MediaPart(1, IMAGE, "/x.png"),
        MediaPart(2, VIDEO, "/x.mp4"),
        TextPart("b"),
        MediaPart(4, AUDIO, "/x.wav"),
    )


def test_the_envelope_holds_the_parts_and_the_text_of_them() -> None:
    read = envelope([text("a"), image("/x.png"), text("b")])
    assert read.text == "ab"
    assert len(read.parts) == 3
    assert envelope("ab").parts == ()


def test_a_list_of_one_string_is_the_dialects_string() -> None:
    read = envelope(["ab"])
    assert (read.text, read.parts) == ("ab", ())
    with pytest.raises(InvalidInput, match=r'"text_input\[0\]" must be an object'):
        envelope(["ab"], dialect=False)


def test_media_need_no_text() -> None:
    assert envelope([image("/x.png")]).text == ""


def test_only_text_counts_as_text() -> None:
    contract_limit = DOCUMENTED.text_limit
    assert contract_limit is not None
    assert envelope([text("a"), image("A" * (contract_limit + 1))]).text == "a"
    with pytest.raises(InvalidInput, match='"text_input" must hold'):
        envelope([text("a" * contract_limit), text("b"), image("")][:2])


@pytest.mark.parametrize(
    ("part", "reason"),
    [
        ("x", "must be an object with a type, got a string"),
        (None, "got null"),
        ({}, "must have one of the types"),
        ({"type": "image"}, 'got "image"'),
        ({"type": ["text"]}, "must have one of the types"),
        ({"type": {}}, "must have one of the types"),
        (text(""), "non-empty string text"),
        (text(None), "non-empty string text"),
        (text({"url": "x"}), "non-empty string text"),
        (image(""), "non-empty image_url"),
        (image(None), "non-empty image_url"),
        (image(["x"]), "non-empty image_url"),
        (image({}), "non-empty image_url"),
        (image({"url": None}), "non-empty image_url"),
        (image({"url": {"url": "x"}}), "non-empty image_url"),
        ({"type": "image_url", "video_url": "/x.mp4"}, "non-empty image_url"),
    ],
)
def test_a_wrong_part_is_named(part: Any, reason: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        read_parts([text("a"), part])
    assert caught.value.message.startswith('"text_input[1]" ')
    assert reason in caught.value.message


def test_an_empty_list_is_refused() -> None:
    with pytest.raises(InvalidInput, match="empty list"):
        read_parts([])


def test_twenty_media_fit_and_no_more() -> None:
    assert len(read_parts([image("/x.png")] * 20 + [text("a")] * 30)) == 50
    with pytest.raises(InvalidInput, match=r'"text_input\[21\]" is one media item too many'):
        read_parts([text("a")] + [image("/x.png")] * 21)


def test_a_model_takes_what_it_takes() -> None:
    parts = read_parts([text("a"), image("x"), image("y"), {"type": "audio_url", "audio_url": "z"}])
    check_modalities(parts, {IMAGE: 2, AUDIO: 1})
    with pytest.raises(InvalidInput, match=r'"text_input\[1\]" holds image, which the model'):
        check_modalities(parts, {})
    with pytest.raises(InvalidInput, match=r'"text_input\[2\]" is one image too many'):
        check_modalities(parts, {IMAGE: 1, AUDIO: 1})
    with pytest.raises(InvalidInput, match=r'"text_input\[3\]" holds audio'):
        check_modalities(parts, {IMAGE: 2, AUDIO: 0})
    check_modalities([TextPart("a")], {})


PLACEHOLDERS = ("<image>", "<|audio|>")


@pytest.mark.parametrize(
    ("parts", "wrong"),
    [
        ([text("what is <image> here"), image("x")], 0),
        ([text("a"), image("x"), text("b"), text("<image>")], 3),
        ([image("x"), text("<|audio|>")], 1),
        # Read together they are what neither is alone; the later one completes it.
        ([text("<im"), text("age>"), image("x")], 1),
        ([text("<"), text("im"), text("age>"), image("x")], 2),
    ],
)
def test_text_that_stands_for_a_medium_is_named(parts: list[Any], wrong: int) -> None:
    with pytest.raises(InvalidInput) as caught:
        check_texts(read_parts(parts), PLACEHOLDERS)
    held = "<|audio|>" if "<|audio|>" in str(parts) else "<image>"
    expected = f'"text_input[{wrong}]" holds "{held}", which marks a medium for this model'
    assert caught.value.message == expected


@pytest.mark.parametrize(
    "parts",
    [
        [text("<image>")],
        [text("<image"), image("x"), text(">")],
        [text("<im age>"), image("x"), text("image>")],
    ],
)
def test_other_text_and_text_alone_passes(parts: list[Any]) -> None:
    check_texts(read_parts(parts), PLACEHOLDERS)
    check_texts(read_parts([text("<image>"), image("x")]), ())


@pytest.mark.parametrize("placeholders", [(), PLACEHOLDERS])
def test_many_texts_are_not_read_again_and_again(placeholders: tuple[str, ...]) -> None:
    """Were all of them kept, this would copy 40 GB."""
    check_texts([MediaPart(0, IMAGE, "x"), *[TextPart("a" * 200)] * 20_000], placeholders)


def test_the_first_text_with_a_placeholder_is_found_among_media() -> None:
    parts = [object(), TextPart("a"), TextPart("a <image>"), TextPart("<image>")]
    check_no_text(parts, "<video>")
    with pytest.raises(InvalidInput, match=r'"text_input\[2\]" holds "<image>"'):
        check_no_text(parts, "<image>")


@pytest.mark.parametrize("url", ["http://a.example/x", "HTTPS://A.example/x.txt"])
def test_urls_are_urls(url: str) -> None:
    assert isinstance(source(url), MediaUrl)


def test_a_url_must_be_on_the_list_before_its_address_matters() -> None:
    assert "not on the list" in refusal("http://127.0.0.1/x.png")
    assert "not on the list" in refusal("http://b.example/x.png")


def test_an_address_on_the_list_must_still_be_public() -> None:
    hosts = HostPolicy(parse_hosts("127.0.0.1,0x7f000001,::1"))
    for host in ("127.0.0.1", "0x7f000001", "[::1]"):
        with pytest.raises(MediaRefused, match="public"):
            read_source(MediaPart(0, IMAGE, f"http://{host}/x.png"), hosts, ROOTS)


@pytest.mark.parametrize(
    "value",
    [
        "ftp://a.example/x.png",
        "javascript:alert(1).png",
        "file://a.example/data/multimodal_inputs/x.png",
        "file:/data/multimodal_inputs/x.png",
        "file:x.png",
        "c:\\x.png",
        "mindie-media:0",
        "unix:///x.png",
    ],
)
def test_other_schemes_are_refused(value: str) -> None:
    assert "http://, https://, data: or file:///" in refusal(value)


@pytest.mark.parametrize(
    ("path", "components"),
    [
        ("/data/multimodal_inputs/x.png", ("x.png",)),
        ("/data/multimodal_inputs/a/b.c/x.JPEG", ("a", "b.c", "x.JPEG")),
        ("/data/multimodal_inputs//a/./x.png", ("a", "x.png")),
        ("//data/multimodal_inputs/x.png", ("x.png",)),
        ("/mnt/real/图 1.png", ("图 1.png",)),
        ("file:///data/multimodal_inputs/x.png", ("x.png",)),
        ("FILE:///data/multimodal_inputs/%2e%2e/x.png", ("%2e%2e", "x.png")),
        ("/data/multimodal_inputs/..x/x..png", ("..x", "x..png")),
    ],
)
def test_a_path_below_the_root_is_taken_apart(path: str, components: tuple[str, ...]) -> None:
    assert source(path) == LocalSource(components)


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("/data/multimodal_inputs/../secret.png", "with .."),
        ("/data/multimodal_inputs/a/../../secret.png", "with .."),
        ("/data/multimodal_inputs/..", "with .."),
        ("file:///data/multimodal_inputs/../secret.png", "with .."),
        ("/data/multimodal_inputs_2/x.png", "outside"),
        ("/data/x.png", "outside"),
        ("/etc/passwd.png", "outside"),
        ("//data/x.png", "begins with //: a URL begins with http://"),
        ("//a.example/x.png", "begins with //: a URL begins with http://"),
        ("x.png", "begins neither with / like a path nor with http://"),
        ("a/b.png", "begins neither with / like a path nor with http://"),
        ("./x.png", "begins neither with / like a path nor with http://"),
        ("a.example/x.png", "begins neither with / like a path nor with http://"),
        ("data/multimodal_inputs/x.png", "begins neither with / like a path nor with http://"),
        ("~/x.png", "begins neither with / like a path nor with http://"),
        ("/data/multimodal_inputs/x.png/", "ends in /, which names no file"),
        ("/data/multimodal_inputs/x.png//", "ends in /, which names no file"),
        ("/data/multimodal_inputs/x.png/.", "ends in /, which names no file"),
        ("file:///data/multimodal_inputs/x.png/", "ends in /, which names no file"),
        ("/" + "x" * 4091 + ".png", "path of 4096 characters, at most 4095"),
        ("file:///" + "x" * 5000, "path of 5001 characters, at most 4095"),
        (" /data/multimodal_inputs/x.png", "begins with a space"),
        ("/data/multimodal_inputs/x.txt", "does not end in .jpg, .jpeg, .png"),
        ("/data/multimodal_inputs/x.png\x00", "control character"),
        ("/data/multimodal_inputs/x\n.png", "control character"),
        ("/data/multimodal_inputs\\x.png", "backslash"),
        ("/proc/self/environ.png", "outside"),
    ],
)
def test_any_other_path_is_refused(path: str, reason: str) -> None:
    assert reason in refusal(path)


@pytest.mark.parametrize("space", [" ", "\t", "\n", "\u3000"])
@pytest.mark.parametrize("value", ["http://a.example/x.png", "AAAA", "data:image/png;base64,AAAA"])
def test_a_value_that_begins_with_a_space_is_told_so(space: str, value: str) -> None:
    assert refusal(space + value) == "begins with a space or a line break"


def test_the_longest_path_is_a_path() -> None:
    name = "x" * (4095 - len("/data/multimodal_inputs/.png")) + ".png"
    assert source(f"/data/multimodal_inputs/{name}") == LocalSource((name,))


@pytest.mark.parametrize(
    ("kind", "name"), [(IMAGE, "x.mp4"), (VIDEO, "x.wav"), (AUDIO, "x.png"), (AUDIO, "x.wavx")]
)
def test_a_name_must_fit_the_kind(kind: MediaKind, name: str) -> None:
    assert "does not end in" in refusal(f"/data/multimodal_inputs/{name}", kind)


def test_base64_stands_alone_or_in_a_data_url() -> None:
    encoded = data_url(png()).partition(",")[2]
    bare, framed = source(encoded), source(f"data:image/png;base64,{encoded}")
    assert isinstance(bare, InlineSource)
    assert isinstance(framed, InlineSource)
    assert (bare.start, framed.start) == (0, 22)
    assert bare.size == framed.size == len(png())


def test_a_jpegs_base64_begins_like_a_path_and_is_none() -> None:
    assert isinstance(source("/9j/4AAQSkZJRgABAQAAAQABAAD="), InlineSource)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("data:image/png,AAAA", "data:TYPE;base64,DATA"),
        ("data:;base64,AAAA", "another type"),
        ("data:image/png;charset=utf-8;base64,AAAA", "data:TYPE;base64,DATA"),
        ("data:image/svg+xml;base64,AAAA", "another type"),
        ("data:text/html;base64,AAAA", "another type"),
        ("data:video/mp4;base64,AAAA", "another type"),
        ("data:image/" + "x" * 100 + ";base64,AAAA", "data:TYPE;base64,DATA"),
        ("data:image/png;base64,", "cut off"),
        ("data:image/png;base64,AAA", "cut off"),
        ("AAA", "neither"),
    ],
)
def test_a_wrong_data_url_is_refused(value: str, reason: str) -> None:
    assert reason in refusal(value)


@pytest.mark.parametrize("kind", [IMAGE, AUDIO])
def test_base64_that_is_too_large_is_refused_before_it_is_decoded(kind: MediaKind) -> None:
    # The length decides: what it says would not even decode.
    limit = rule_of(kind).limit
    fits, more = "*" * (limit // 3 * 4), "*" * (limit // 3 * 4 + 8)
    assert isinstance(source(fits, kind), InlineSource)
    assert f"larger than {limit // MIB} MB" in refusal(more, kind)
    assert f"larger than {limit // MIB} MB" in refusal("*" * 60 * MIB, kind)


def test_a_refusal_becomes_the_clients_error() -> None:
    with pytest.raises(InvalidInput) as caught, named(7):
        raise MediaRefused("is wrong")
    assert caught.value.message == '"text_input[7]" is wrong'
    assert caught.value.status == 422


def test_the_table_is_the_contracts() -> None:
    assert [(row.field, row.limit // MIB) for row in RULES] == [
        ("image_url", 40),
        ("video_url", 512),
        ("audio_url", 40),
    ]
