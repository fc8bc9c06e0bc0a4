"""Local media: only plain files below the root, whatever stands there and whatever changes."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from proxy.media import local
from proxy.media.local import MediaRoot
from tests.media_support import open_files, png, watching
from translators.media_formats import MIB, MediaKind
from translators.media_urls import MediaRefused

IMAGE = MediaKind.IMAGE
SECRET = b"secret"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A root with files and links in it, and a secret beside it."""
    root = tmp_path / "root"
    (root / "sub" / "deep").mkdir(parents=True)
    (tmp_path / "root2").mkdir()
    (tmp_path / "secret.png").write_bytes(SECRET)
    (tmp_path / "root2" / "x.png").write_bytes(SECRET)
    (root / "a.png").write_bytes(png())
    (root / "sub" / "b.png").write_bytes(png(5, 5))
    links = {
        "inside.png": "sub/b.png",
        "absolute.png": str(root / "sub" / "b.png"),
        "sub/up.png": "../a.png",
        "sub/deep/two.png": "../../inside.png",
        "directory": "sub",
        "out.png": "../secret.png",
        "out-absolute.png": str(tmp_path / "secret.png"),
        "out-far.png": "/etc/passwd",
        "out-twin.png": str(tmp_path / "root2" / "x.png"),
        "sub/out.png": "../../secret.png",
        "way-out": "..",
        "way-out-absolute": str(tmp_path),
        "loop.png": "loop.png",
        "loop-a.png": "loop-b.png",
        "loop-b.png": "loop-a.png",
        "dead.png": "nothing.png",
        "proc.png": "/proc/self/environ",
        "around.png": "sub/../../root/a.png",
        "no-directory.png": "a.png/",
        "no-directory-either.png": "sub/b.png/.",
        "directory-slash": "sub/",
    }
    for name, target in links.items():
        (root / name).symlink_to(target)
    return root


def open_at(root: Path, path: str) -> bytes:
    content = MediaRoot(str(root)).open(tuple(path.split("/")), IMAGE)
    try:
        return content.read()
    finally:
        content.close()


@pytest.mark.parametrize(
    ("path", "size"),
    [
        ("a.png", (3, 2)),
        ("sub/b.png", (5, 5)),
        ("inside.png", (5, 5)),
        ("absolute.png", (5, 5)),
        ("sub/up.png", (3, 2)),
        ("sub/deep/two.png", (5, 5)),
        ("directory/b.png", (5, 5)),
        ("directory-slash/b.png", (5, 5)),
        ("directory/deep/two.png", (5, 5)),
    ],
)
def test_files_below_the_root_are_read(tree: Path, path: str, size: tuple[int, int]) -> None:
    assert open_at(tree, path) == png(*size)


@pytest.mark.parametrize(
    "path",
    [
        "out.png",
        "out-absolute.png",
        "out-far.png",
        "out-twin.png",
        "sub/out.png",
        "directory/out.png",
        "way-out/secret.png",
        "way-out-absolute/secret.png",
        "way-out/root/a.png",
        "around.png",
        "no-directory.png",
        "no-directory-either.png",
        "loop.png",
        "loop-a.png",
        "dead.png",
        "proc.png",
        "nothing.png",
        "nothing/x.png",
        "a.png/x.png",
        "sub",
        "sub/deep",
    ],
)
def test_nothing_else_is_opened(tree: Path, path: str) -> None:
    with watching() as watch, pytest.raises(MediaRefused, match="no readable media file"):
        open_at(tree, path)
    assert watch.opened == []
    # Each name was looked up below a descriptor, never by a path that could lead away.
    assert watch.looked_at[0] == str(tree)
    assert not any("/" in name or name == ".." for name in watch.looked_at[1:])


def test_the_root_may_be_a_link_and_is_known_by_both_names(tree: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tree)
    root = MediaRoot(str(tmp_path / "link") + "/")
    assert root.spellings == (str(tmp_path / "link"), str(tree))
    for name in ("a.png", "absolute.png"):
        root.open((name,), IMAGE).close()


def test_pipes_sockets_and_devices_are_never_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.png")
    (tmp_path / "null.png").symlink_to("/dev/zero")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "socket.png"))
        for name in ("pipe.png", "null.png", "socket.png"):
            with watching() as watch, pytest.raises(MediaRefused):
                open_at(tmp_path, name)
            assert watch.opened == []


def test_a_device_below_the_root_is_not_opened() -> None:
    with watching() as watch, pytest.raises(MediaRefused):
        open_at(Path("/dev"), "zero")
    assert watch.opened == []


def test_a_second_name_of_a_file_is_refused(tree: Path) -> None:
    (tree / "hard.png").hardlink_to(tree.parent / "secret.png")
    with watching() as watch, pytest.raises(MediaRefused, match="more than one name"):
        open_at(tree, "hard.png")
    assert watch.opened == []


def test_a_sparse_giant_is_refused_unread(tmp_path: Path) -> None:
    with (tmp_path / "giant.png").open("wb") as file:
        file.truncate(1 << 40)
    with watching() as watch, pytest.raises(MediaRefused, match="larger than 40 MB"):
        open_at(tmp_path, "giant.png")
    assert watch.opened == []


def test_each_kind_has_its_own_limit(tmp_path: Path) -> None:
    with (tmp_path / "x").open("wb") as file:
        file.truncate(40 * MIB + 1)
    root = MediaRoot(str(tmp_path))
    root.open(("x",), MediaKind.VIDEO).close()
    with pytest.raises(MediaRefused):
        root.open(("x",), MediaKind.AUDIO)


def test_an_empty_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.png").touch()
    with pytest.raises(MediaRefused, match="empty"):
        open_at(tmp_path, "x.png")


def test_a_missing_root_has_no_files(tmp_path: Path) -> None:
    with pytest.raises(MediaRefused):
        open_at(tmp_path / "nowhere", "x.png")


def test_a_name_too_long_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MediaRefused):
        open_at(tmp_path, "x" * 5000)


def test_a_file_swapped_between_look_and_open_is_refused(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A link put in the file's place is not followed; another file is not taken for it."""
    real = os.open

    def swap(to: Path) -> None:
        def swapping(path: str, flags: int, **place: int) -> int:
            if path == "a.png" and not flags & os.O_PATH:
                (tree / "a.png").unlink()
                to.rename(tree / "a.png")
            return real(path, flags, **place)

        monkeypatch.setattr(local.os, "open", swapping)

    link, other = tree / "link", tree / "other"
    link.symlink_to("../secret.png")
    other.write_bytes(png(9, 9))
    before = open_files()
    for replacement in (link, other):
        swap(replacement)
        with pytest.raises(MediaRefused):
            open_at(tree, "a.png")
        monkeypatch.undo()
        (tree / "a.png").unlink()
        (tree / "a.png").write_bytes(png())
    assert open_files() == before


def test_a_directory_swapped_during_the_walk_leads_nowhere(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.open

    def swapping(path: str, flags: int, **place: int) -> int:
        found = real(path, flags, **place)
        if path == "sub" and (tree / "sub").is_dir() and not (tree / "sub").is_symlink():
            (tree / "sub").rename(tree / "moved")
            (tree / "sub").symlink_to(tree.parent / "root2")
        return found

    monkeypatch.setattr(local.os, "open", swapping)
    with pytest.raises(MediaRefused):
        open_at(tree, "sub/x.png")
    assert (tree / "sub").is_symlink()
