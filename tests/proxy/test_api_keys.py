"""The file of keys, and finding one."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from proxy.api_keys import KeyRing, KeysError, read_keys
from proxy.limits import Limits


def hashed(secret: str) -> str:
    return "sha256:" + hashlib.sha256(secret.encode()).hexdigest()


def test_a_file_and_a_setting_are_read_together(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text(
        f"# the file of keys\n\nalice {hashed('a')} rate=600 burst=20 concurrency=8 # old\n"
        f"bob\t{hashed('b')}\n"
    )
    keys = read_keys(file, f"carol {hashed('c')},  dave {hashed('d')} rate=0.5")
    assert [key.name for key in keys] == ["alice", "bob", "carol", "dave"]
    assert keys[0].limits == Limits(rate=600, burst=20, concurrency=8)
    assert keys[1].limits == Limits()
    assert keys[3].limits == Limits(rate=0.5)


def test_a_secret_finds_its_key_and_nothing_else_does() -> None:
    ring = KeyRing(read_keys(None, f"a {hashed('one')},b {hashed('two')}"), 0.0)
    found = ring.find("two")
    assert found is not None
    assert found.name == "b"
    for wrong in ("", "tw", "two ", "TWO", hashed("two"), "\udcff", "zwei", "two\x00"):
        assert ring.find(wrong) is None


def test_two_keys_of_one_name_share_its_limits() -> None:
    old, new = f"a {hashed('old')} concurrency=1", f"a {hashed('new')} concurrency=1"
    ring = KeyRing(read_keys(None, f"{old},{new}"), 0.0)
    first, second = ring.find("old"), ring.find("new")
    assert first is not None
    assert second is not None
    assert ring.allowance(first) is ring.allowance(second)
    with pytest.raises(KeysError, match="key a differ"):
        read_keys(None, f"{old},a {hashed('new')}")


def test_new_keys_keep_what_was_used_unless_the_limits_changed() -> None:
    first = KeyRing(read_keys(None, f"a {hashed('1')} rate=1,b {hashed('2')} rate=1"), 0.0)
    keys = read_keys(None, f"a {hashed('3')} rate=1,b {hashed('2')} rate=2")
    second = KeyRing(keys, 0.0, first)
    assert second.allowance(keys[0]) is first.allowance(keys[0])
    assert second.allowance(keys[1]) is not first.allowance(keys[1])


def test_no_keys_open_nothing(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("# nobody\n")
    assert KeyRing(read_keys(tmp_path / "keys", None), 0.0).find("") is None


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("alice", "key 1 is not of the form"),
        ("alice secret", "key 1 is not of the form"),
        ("alice sha256:12", "key 1 is not of the form"),
        ("alice md5:" + "0" * 64, "key 1 is not of the form"),
        ("a/b " + hashed("x"), "key 1 is not of the form"),
        ("a" * 65 + " " + hashed("x"), "key 1 is not of the form"),
        (f"a {hashed('x')} speed=3", "key 1 has the unknown option speed"),
        (f"a {hashed('x')} rate=0", "rate must be a number above 0"),
        (f"a {hashed('x')} rate=-1", "rate must be a number above 0"),
        (f"a {hashed('x')} rate=nan", "rate must be a number above 0"),
        (f"a {hashed('x')} rate=inf", "rate must be a number above 0"),
        (f"a {hashed('x')} burst=1.5", "burst must be a number above 0"),
        (f"a {hashed('x')} concurrency=", "concurrency must be a number above 0"),
    ],
)
def test_a_wrong_line_is_refused_without_showing_it(line: str, complaint: str) -> None:
    with pytest.raises(KeysError, match=complaint) as refused:
        read_keys(None, line)
    assert "sha256:" + "0" not in str(refused.value)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("content", [None, b"\xff\xfe"])
def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "keys"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(KeysError, match="cannot read the keys file"):
        read_keys(file, None)
