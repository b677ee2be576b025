from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from helpers import doc
from retrievers.echo import EchoRetriever
from retrievers.pointers import IMAGES, PointerError, pointed_file


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of figures, beside a file that nobody may read."""
    figures = tmp_path / "figures"
    (figures / "sub").mkdir(parents=True)
    (figures / "a.png").write_text("png")
    (figures / "sub" / "B.PNG").write_text("png")
    (figures / "notes.txt").write_text("not an image")
    (tmp_path / "secret.png").write_text("secret")
    (tmp_path / "figures-of-others").mkdir()
    (tmp_path / "figures-of-others" / "a.png").write_text("theirs")
    return figures


@pytest.mark.parametrize("pointer", ["a.png", "./a.png", "sub/../a.png", "sub/B.PNG", "sub\\B.PNG"])
def test_a_file_of_the_folder_is_returned(folder: Path, pointer: str) -> None:
    found = pointed_file(doc("figure", path=pointer), folder)
    assert found in (folder / "a.png", folder / "sub" / "B.PNG")
    assert found.is_absolute()


@pytest.mark.parametrize(
    "pointer",
    [
        "../secret.png",
        "sub/../../secret.png",
        "..\\secret.png",
        "../figures-of-others/a.png",  # a prefix of the name is not the folder
        "/etc/passwd",
        "~/secret.png/../../../x.png",
    ],
)
def test_a_path_out_of_the_folder_is_refused(folder: Path, pointer: str) -> None:
    with pytest.raises(PointerError, match="outside the folder allowed") as failure:
        pointed_file(doc("figure", id="f1", path=pointer), folder)
    assert "'f1'" in str(failure.value)
    assert str(folder) not in str(failure.value)


def test_a_link_out_of_the_folder_is_refused_and_one_inside_followed(folder: Path) -> None:
    (folder / "out.png").symlink_to(folder.parent / "secret.png")
    (folder / "in.png").symlink_to(folder / "a.png")
    with pytest.raises(PointerError, match="outside"):
        pointed_file(doc("figure", path="out.png"), folder)
    assert pointed_file(doc("figure", path="in.png"), folder) == folder / "a.png"


def test_the_folder_itself_may_be_reached_by_a_link(folder: Path) -> None:
    link = folder.parent / "link"
    link.symlink_to(folder, target_is_directory=True)
    assert pointed_file(doc("figure", path="a.png"), link) == folder / "a.png"


@pytest.mark.parametrize("pointer", [None, 7, "", "  ", ["a.png"], "a\0.png", "a\n.png", "a\ud800"])
def test_what_is_no_path_is_an_error(folder: Path, pointer: Any) -> None:
    with pytest.raises(PointerError, match=r"has no path in metadata\['path'\]"):
        pointed_file(doc("figure", path=pointer), folder)


def test_only_the_endings_allowed_are_let_through(folder: Path) -> None:
    with pytest.raises(PointerError, match=r"must end with one of \.avif"):
        pointed_file(doc("figure", path="notes.txt"), folder)
    text = pointed_file(doc("figure", file="notes.txt"), folder, key="file", suffixes={".txt"})
    assert text.read_text() == "not an image"
    (folder / "drawn.svg").write_text("<svg/>")
    with pytest.raises(PointerError, match="name their ending in suffixes"):  # it can hold scripts
        pointed_file(doc("figure", path="drawn.svg"), folder)
    assert pointed_file(doc("figure", path="drawn.svg"), folder, suffixes={".svg"}).is_file()


@pytest.mark.parametrize("name", ["a\u00a0b.png", "9.41\u202fPM.png", "مخطط.png"])
def test_names_with_spaces_of_any_kind_are_names(folder: Path, name: str) -> None:
    (folder / name).write_text("png")
    assert pointed_file(doc("figure", path=name), folder) == folder / name


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
@pytest.mark.parametrize(
    "pointer", ["gone.png", "folder.png", "pipe.png", "circle.png", f"{300 * 'n'}.png"]
)
def test_what_is_no_file_is_not_found(folder: Path, pointer: str) -> None:
    (folder / "folder.png").mkdir()
    os.mkfifo(folder / "pipe.png")
    (folder / "circle.png").symlink_to("circle.png")
    with pytest.raises(FileNotFoundError, match="there is no such file"):
        pointed_file(doc("figure", path=pointer), folder)


def test_a_retriever_returns_the_pointer_whether_or_not_the_file_is_there(folder: Path) -> None:
    retriever = EchoRetriever(documents=[doc("a kite drawn", path="gone.png")])
    (found,) = retriever.invoke("kite")
    assert found.metadata["path"] == "gone.png"


PIECES = ["..", ".", "", "sub", "a.png", "secret.png", "out", "in", "\\", "..\\", "/", "~", "C:"]


@settings(
    max_examples=500, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.lists(st.sampled_from(PIECES), min_size=1, max_size=8), st.booleans())
def test_whatever_the_path_no_file_outside_is_returned(
    folder: Path, pieces: list[str], absolute: bool
) -> None:
    for name, target in (("out", folder.parent), ("in", folder / "sub")):
        if not (folder / name).is_symlink():
            (folder / name).symlink_to(target, target_is_directory=True)
    pointer = ("/" if absolute else "") + "/".join(pieces)
    try:
        found = pointed_file(doc("figure", path=pointer), folder)
    except (PointerError, FileNotFoundError):
        return
    assert found.is_file()
    assert os.path.realpath(found).startswith(os.path.realpath(folder) + os.sep)
    assert found.suffix.lower() in IMAGES
