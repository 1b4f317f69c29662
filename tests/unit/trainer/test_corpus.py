"""The corpus: what is found, what is skipped, what is split, always in the same way."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from trainer import corpus
from trainer.errors import DataError


def fill(folder: Path, files: dict[str, bytes]) -> Path:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return folder


def names(found: corpus.Corpus) -> list[str]:
    return [file.name for file in found.files]


def test_the_standard_library_is_found_without_packages_and_without_doubles() -> None:
    found = corpus.find()
    assert len(found.files) > 400
    assert not [name for name in names(found) if "site-packages" in name or not name.endswith(".py")]
    assert len({file.sha256 for file in found.files}) == len(found.files)
    share = sum(file.size_bytes for file in found.validation) / found.size_bytes
    assert 0.01 < share < 0.15


def test_the_split_is_by_file_and_does_not_move(tmp_path: Path) -> None:
    fill(tmp_path, {f"a{number}.txt": b"text %d\n" % number for number in range(200)})
    found = corpus.find(tmp_path)
    sides = {file.name for file in found.validation}
    assert not sides & {file.name for file in found.train}
    assert 2 <= len(sides) <= 25
    (tmp_path / "a0.txt").write_bytes(b"other content\n")
    assert {file.name for file in corpus.find(tmp_path).validation} == sides


def test_order_is_by_name_whatever_the_folder_says(tmp_path: Path) -> None:
    one = fill(tmp_path / "one", {"b.txt": b"b\n", "a.txt": b"a\n", "c/d.txt": b"d\n"})
    two = fill(tmp_path / "two", {"c/d.txt": b"d\n", "a.txt": b"a\n", "b.txt": b"b\n"})
    assert names(corpus.find(one)) == names(corpus.find(two)) == ["a.txt", "b.txt", "c/d.txt"]


def test_binary_files_are_skipped_and_counted(tmp_path: Path) -> None:
    fill(
        tmp_path,
        {
            "text.txt": "schön\n".encode(),
            "nul.txt": b"abc\0def",
            "latin.txt": "schön".encode("latin-1"),
            "cut.txt": "ö".encode()[:1],
            "more.txt": b"more\n",
            "empty.txt": b"",
        },
    )
    found = corpus.find(tmp_path)
    assert names(found) == ["more.txt", "text.txt"]
    assert found.skipped_binary == 3
    assert "3 binary or not UTF-8" in found.describe()


def test_doubles_count_once_by_path_and_by_content(tmp_path: Path) -> None:
    fill(tmp_path, {"a.txt": b"same\n", "b.txt": b"same\n", "c.txt": b"other\n"})
    (tmp_path / "d.txt").symlink_to(tmp_path / "c.txt")
    found = corpus.find(tmp_path)
    assert names(found) == ["a.txt", "c.txt"]
    assert found.skipped_duplicate == 2


def test_no_link_leads_out_of_the_folder(tmp_path: Path) -> None:
    outside = fill(tmp_path / "outside", {"secret.txt": b"secret\n", "deep/more.txt": b"more\n"})
    folder = fill(tmp_path / "folder", {"a.txt": b"a\n", "b.txt": b"b\n"})
    (folder / "link.txt").symlink_to(outside / "secret.txt")
    (folder / "linked").symlink_to(outside)
    (folder / "gone.txt").symlink_to(folder / "nothing")
    (folder / "loop").symlink_to(folder)
    os.mkfifo(folder / "pipe.txt")
    found = corpus.find(folder)
    assert names(found) == ["a.txt", "b.txt"]
    assert found.skipped_outside == 3  # the link, the dangling one, the FIFO; linked folders are not entered


def test_checkpoints_and_hidden_folders_inside_are_no_text(tmp_path: Path) -> None:
    fill(tmp_path, {"a.txt": b"a\n", "b.txt": b"b\n", "run/step-1.manifest.json": b"{}\n", ".git/config": b"x\n"})
    assert names(corpus.find(tmp_path, exclude=tmp_path / "run")) == ["a.txt", "b.txt"]


@pytest.mark.parametrize(
    ("files", "says"),
    [({}, "no files"), ({"a.bin": b"\0\1\2", "b.bin": b"\xff\xfe\xfd"}, "none of them text"), ({"a": b""}, "none of")],
)
def test_a_folder_without_text_is_one_clear_error(tmp_path: Path, files: dict[str, bytes], says: str) -> None:
    fill(tmp_path, files)
    with pytest.raises(DataError, match=says) as caught:
        corpus.find(tmp_path)
    assert caught.value.exit_code == 65


def test_a_folder_that_is_none_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="is no folder"):
        corpus.find(tmp_path / "missing")


def test_pieces_are_the_text_again_and_cut_no_character(tmp_path: Path) -> None:
    long = "äöü€𝄞" * 5000
    content = {"a.txt": ("line ä\n" * 3000 + long + "\nend").encode(), "b.txt": b"x", "c.txt": b"ends\n"}
    found = corpus.find(fill(tmp_path, content))
    texts: list[str] = [""]
    for piece, last in corpus.pieces(found.files, size=1000):
        texts[-1] += piece
        if last:
            texts.append("")
    assert [text.encode() for text in texts[:-1]] == list(content.values())


def test_a_file_that_changes_meanwhile_is_an_error(tmp_path: Path) -> None:
    found = corpus.find(fill(tmp_path, {"a.txt": b"a\n", "b.txt": b"b\n"}))
    (tmp_path / "a.txt").write_bytes(b"c\n")
    with pytest.raises(DataError, match="changed"):
        list(corpus.pieces(found.files))
