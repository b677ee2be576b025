"""Tools kept in a folder or a database: one that is broken hides no other, none is half-written."""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retriever_tools import library
from retriever_tools.library import (
    MAX_BYTES,
    FolderLibrary,
    LibraryError,
    StoreLibrary,
    check_key,
    parse_json,
)
from retriever_tools.tool import ToolError, parse_tool


def document(key: str = "airports", **changes: Any) -> dict[str, Any]:
    return {
        "_key": key,
        "tool_id": key,
        "tool_type": "custom_retriever",
        "description": "Finds airports by their name.",
        "config": {
            "collection": "Airports",
            "search_modes": [{"type": "lexical", "field": "name"}],
        },
        **changes,
    }


def put(folder: Path, name: str, value: Any) -> Path:
    path = folder / name
    if isinstance(value, bytes):
        path.write_bytes(value)
    else:
        path.write_text(json.dumps(value), encoding="utf-8")
    return path


def faults(found: FolderLibrary | StoreLibrary) -> dict[str, str]:
    return {broken.name: str(broken.error) for broken in found.load().broken}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "tools"
    folder.mkdir()
    put(folder, "airports.json", document())
    return folder


def test_a_folder_is_a_mapping_of_ids_to_tools(folder: Path) -> None:
    put(folder, "tickets.json", document("tickets"))
    tools = FolderLibrary(folder)
    assert list(tools) == ["airports", "tickets"]
    assert len(tools) == 2
    assert "airports" in tools
    assert "nothing" not in tools
    assert tools["airports"] == parse_tool(document())
    assert tools.get("nothing") is None
    assert dict(tools.items()) == {"airports": tools["airports"], "tickets": tools["tickets"]}
    assert list(tools.values()) == [tools["airports"], tools["tickets"]]
    assert tools.load().names == {"airports": "airports.json", "tickets": "tickets.json"}


def test_only_what_has_changed_is_read_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    real = library.read_json

    def counted(path: Path) -> Any:
        read.append(path.name)
        return real(path)

    monkeypatch.setattr(library, "read_json", counted)
    put(folder, "tickets.json", document("tickets"))
    tools = FolderLibrary(folder)
    assert read == []  # nothing is read before it is asked for
    assert len(tools) == 2
    assert sorted(read) == ["airports.json", "tickets.json"]
    read.clear()
    assert tools["airports"].config.top_k == 10
    assert read == []
    changed = document(config={**document()["config"], "top_k": 333})
    put(folder, "airports.json", changed)
    assert tools["airports"].config.top_k == 333
    assert read == ["airports.json"]
    (folder / "tickets.json").unlink()
    assert list(tools) == ["airports"]


def test_a_broken_file_hides_no_other_and_says_what_is_wrong_when_asked_for(folder: Path) -> None:
    wrong = document("wrong", config={**document()["config"], "top_k": 0})
    put(folder, "wrong.json", wrong)
    tools = FolderLibrary(folder)
    assert list(tools) == ["airports"]
    assert tools["airports"].tool_id == "airports"
    with pytest.raises(ToolError, match=r"(?s)wrong\.json.*config\.top_k"):
        tools["wrong"]
    with pytest.raises(ToolError):
        tools.get("wrong")
    assert "wrong" not in tools
    (broken,) = tools.load().broken
    assert (broken.name, broken.tool_id) == ("wrong.json", "wrong")
    put(folder, "wrong.json", document("wrong"))
    assert list(tools) == ["airports", "wrong"]


def test_two_files_with_one_tool_id_are_an_error_that_names_both(folder: Path) -> None:
    put(folder, "other.json", document("other", tool_id="airports"))
    put(folder, "tickets.json", document("tickets"))
    tools = FolderLibrary(folder)
    assert list(tools) == ["tickets"]
    with pytest.raises(ToolError, match=r"airports\.json and other\.json"):
        tools["airports"]
    assert sorted(faults(tools)) == ["airports.json", "other.json"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "line 1, column 1"),
        (b'{"_key": ', "line 1, column 10"),
        (b'{"tool_id": "caf\xe9"}', "byte 16 is not UTF-8"),
        ("{}".encode("utf-16"), "not UTF-8"),
        (b'{"tool_id": "a", "tool_id": "b"}', "$.tool_id: is there twice"),
        (b'{"config": {"top_k": NaN}}', "$.config.top_k: is nan"),
        (b'{"config": {"top_k": 1e999}}', "$.config.top_k: is inf"),
        (b'{"config": {"top_k": ' + b"9" * 5000 + b"}}", "too many digits"),
        (b"[" * 100_000, "nested too deeply"),
        (b" " * (MAX_BYTES + 1), "1,000,001 bytes"),
        (b"[]", ""),
        (b"null", ""),
    ],
)
def test_a_file_that_is_no_tool_is_a_fault_that_names_it(
    folder: Path, content: bytes, message: str
) -> None:
    put(folder, "new.json", content)
    tools = FolderLibrary(folder)
    assert list(tools) == ["airports"]
    found = faults(tools)
    assert list(found) == ["new.json"]
    assert found["new.json"].startswith("new.json ")
    assert message in found["new.json"]
    assert str(folder) not in found["new.json"]  # it may go to somebody elsewhere


@given(st.binary(max_size=60))
def test_no_bytes_break_the_reader(content: bytes) -> None:
    try:
        value = parse_json(content, "x.json")
    except ToolError:
        return
    # As text, as NaN, which parse_tool refuses, is not equal to itself.
    assert json.dumps(value) == json.dumps(json.loads(content.decode("utf-8-sig")))


def test_a_byte_order_mark_is_allowed(folder: Path) -> None:
    put(folder, "airports.json", b"\xef\xbb\xbf" + json.dumps(document()).encode())
    assert list(FolderLibrary(folder)) == ["airports"]


def test_a_file_may_have_any_name_and_is_the_one_that_is_replaced(folder: Path) -> None:
    put(folder, "my own.json", document("new"))
    tools = FolderLibrary(folder)
    assert faults(tools) == {}
    assert tools["new"].tool_id == "new"
    with pytest.raises(LibraryError, match=r"is that of my own\.json"):
        tools.add(document("new", description="Newer."))
    tools.add(document("new", description="Newer."), replace=True)
    assert tools["new"].description == "Newer."
    assert sorted(path.name for path in folder.iterdir()) == ["airports.json", "my own.json"]


def test_a_file_with_another_tool_is_not_replaced(folder: Path) -> None:
    put(folder, "new.json", document("old"))
    tools = FolderLibrary(folder)
    for replace in (False, True):
        with pytest.raises(LibraryError, match=r"new\.json holds the tool 'old'"):
            tools.add(document("new"), replace=replace)
    assert sorted(tools) == ["airports", "old"]


def test_of_a_document_without_key_no_key_is_spoken(folder: Path) -> None:
    given = document("airports")
    del given["_key"]
    with pytest.raises(LibraryError) as taken:
        FolderLibrary(folder).add(given)
    with pytest.raises(ToolError) as unsafe:
        FolderLibrary(folder).add({**given, "tool_id": "con"})
    assert "_key" not in str(taken.value) + str(unsafe.value)
    assert "tool_id: 'con' cannot" in str(unsafe.value)


def test_hidden_files_subfolders_and_other_files_are_left_alone(folder: Path) -> None:
    put(folder, ".airports.json", b"\0")
    put(folder, "README.md", b"About these tools.")
    (folder / "old.json").mkdir()
    put(folder / "old.json", "tickets.json", document("tickets"))
    (folder / "more").mkdir()
    put(folder / "more", "tickets.json", document("tickets"))
    tools = FolderLibrary(folder)
    assert list(tools) == ["airports"]
    assert faults(tools) == {}


@pytest.mark.skipif(sys.platform == "win32", reason="links need a privilege there")
def test_links_are_followed_in_the_folder_and_not_out_of_it(folder: Path, tmp_path: Path) -> None:
    (folder / ".data").mkdir()  # as Kubernetes mounts a ConfigMap
    put(folder / ".data", "tickets.json", document("tickets"))
    (folder / "tickets.json").symlink_to(Path(".data") / "tickets.json")
    secret = put(tmp_path, "secret.json", document("secret"))
    (folder / "secret.json").symlink_to(secret)
    (folder / "gone.json").symlink_to(folder / "nowhere.json")
    (folder / "circle.json").symlink_to(folder / "circle.json")
    tools = FolderLibrary(folder)
    assert list(tools) == ["airports", "tickets"]
    found = faults(tools)
    assert sorted(found) == ["circle.json", "gone.json", "secret.json"]
    assert "outside the folder" in found["secret.json"]
    put(folder / ".data", "tickets.json", document("tickets", description="Changed."))
    assert tools["tickets"].description == "Changed."


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_a_pipe_is_not_waited_for(folder: Path) -> None:
    os.mkfifo(folder / "pipe.json")
    tools = FolderLibrary(folder)
    assert list(tools) == ["airports"]
    assert "not a regular file" in faults(tools)["pipe.json"]


@pytest.mark.parametrize("name", ["nowhere", "a-file"])
def test_a_folder_that_is_not_there_is_an_error(tmp_path: Path, name: str) -> None:
    (tmp_path / "a-file").write_text("mine")
    with pytest.raises(LibraryError, match=name):
        list(FolderLibrary(tmp_path / name))


def test_what_was_added_is_found_and_is_the_document_as_given(tmp_path: Path) -> None:
    tools = FolderLibrary(tmp_path / "new" / "tools")
    given = document(description="Flughäfen: näher als man denkt.")
    assert tools.add(given) == parse_tool(given)
    assert tools["airports"] == parse_tool(given)
    (path,) = (tmp_path / "new" / "tools").iterdir()
    assert path.name == "airports.json"
    assert json.loads(path.read_text(encoding="utf-8")) == given
    assert "Flughäfen" in path.read_text(encoding="utf-8")


def test_a_tool_is_added_as_well_as_its_document(tmp_path: Path) -> None:
    tools = FolderLibrary(tmp_path)
    tool = parse_tool(document())
    tools.add(tool)
    assert FolderLibrary(tmp_path)["airports"] == tool


def test_nothing_is_overwritten_unless_told(folder: Path) -> None:
    tools = FolderLibrary(folder)
    before = (folder / "airports.json").read_bytes()
    with pytest.raises(LibraryError, match=r"airports\.json already"):
        tools.add(document(description="Another."))
    assert (folder / "airports.json").read_bytes() == before
    tools.add(document(description="Another."), replace=True)
    assert tools["airports"].description == "Another."
    assert [path.name for path in folder.iterdir()] == ["airports.json"]


def test_a_tool_id_that_is_taken_is_refused_unless_to_replace(folder: Path) -> None:
    tools = FolderLibrary(folder)
    with pytest.raises(LibraryError, match=r"is that of airports\.json"):
        tools.add(document("other", tool_id="airports"))
    tools.add(document("other", tool_id="airports", description="Another."), replace=True)
    assert tools["airports"].description == "Another."
    assert [path.name for path in folder.iterdir()] == ["airports.json"]
    put(folder, "twin.json", document("twin", tool_id="airports"))
    with pytest.raises(LibraryError, match=r"airports\.json and twin\.json"):
        tools.add(document(), replace=True)  # which of the two?


def test_a_broken_tool_can_be_replaced(folder: Path) -> None:
    put(folder, "airports.json", b"{")
    tools = FolderLibrary(folder)
    with pytest.raises(LibraryError):
        tools.add(document())
    tools.add(document(), replace=True)
    assert list(tools) == ["airports"]


def test_an_invalid_document_is_not_written(folder: Path) -> None:
    tools = FolderLibrary(folder)
    for wrong in (document("x", tool_type="magic"), {}, [], None):
        with pytest.raises(ToolError):
            tools.add(wrong, replace=True)  # type: ignore[arg-type]
    assert [path.name for path in folder.iterdir()] == ["airports.json"]


@pytest.mark.parametrize("replace", [False, True])
def test_a_write_that_fails_leaves_what_was_there(
    folder: Path, monkeypatch: pytest.MonkeyPatch, replace: bool
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    before = (folder / "airports.json").read_bytes()
    key = "airports" if replace else "tickets"
    with pytest.raises(LibraryError, match="No space left on device"):
        FolderLibrary(folder).add(document(key, description="New."), replace=replace)
    assert [path.name for path in folder.iterdir()] == ["airports.json"]
    assert (folder / "airports.json").read_bytes() == before


@pytest.mark.parametrize("links", [True, False])
def test_of_two_that_add_one_key_at_once_one_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, links: bool
) -> None:
    if not links:  # as on exFAT

        def unsupported(*_: Any) -> None:
            raise OSError(95, "Operation not supported")

        monkeypatch.setattr(os, "link", unsupported)
    tools = FolderLibrary(tmp_path)
    tools.add(document())
    # The other program was faster: it wrote between the look and the write.
    monkeypatch.setattr(FolderLibrary, "_place", lambda self, tool, name, replace: name)
    with pytest.raises(LibraryError, match="already"):
        FolderLibrary(tmp_path).add(document(description="Second."))
    assert tools["airports"].description == document()["description"]
    assert [path.name for path in tmp_path.iterdir()] == ["airports.json"]


def test_readers_and_writers_work_side_by_side(folder: Path) -> None:
    tools = FolderLibrary(folder)
    errors: list[BaseException] = []

    def write() -> None:
        try:
            for number in range(20):
                tools.add(document(description=f"Version {number}."), replace=True)
        except BaseException as error:
            errors.append(error)

    def read() -> None:
        try:
            for _ in range(40):
                assert tools["airports"].tool_id == "airports"
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=target) for target in (write, read, read)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert tools["airports"].description == "Version 19."


@pytest.mark.parametrize(
    "key",
    [
        *("", ".", "..", "../x", "a/b", "a\\b", ".hidden", "a.", "c:x", "a b", "a\n", "a\0", "ä"),
        *("con", "NUL.txt", "com1", "x" * 101),
    ],
)
def test_a_key_that_is_no_safe_file_name_is_refused_and_nothing_written(
    tmp_path: Path, key: str
) -> None:
    with pytest.raises(ToolError, match="_key"):
        check_key(key)
    with pytest.raises((ToolError, LibraryError)):
        FolderLibrary(tmp_path / "tools").add(document("fine", _key=key), replace=True)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


@given(st.text(max_size=12))
def test_a_key_that_is_accepted_names_one_file_in_the_folder(key: str) -> None:
    try:
        check_key(key)
    except ToolError:
        return
    path = Path("tools") / f"{key}.json"
    assert path.parent == Path("tools")
    assert path.stem == key
    assert not path.name.startswith(".")
    assert path.name.isascii()


class MemoryStore:
    """The part of a database that keeps tools."""

    language = "aql"

    def __init__(self, *documents: dict[str, Any]) -> None:
        self.documents = {str(one.get("_key")): one for one in documents}

    def tools(self) -> list[dict[str, Any]]:
        return list(self.documents.values())

    def put_tool(self, document: Mapping[str, Any]) -> None:
        self.documents[document["_key"]] = {
            **document,
            "_id": f"Tools/{document['_key']}",
            "_rev": "_j1",
        }


def store_library(*documents: dict[str, Any]) -> StoreLibrary:
    return StoreLibrary(MemoryStore(*documents))  # type: ignore[arg-type]


def test_a_database_is_a_library_too() -> None:
    tools = store_library()
    assert list(tools) == []
    tool = tools.add(document())
    assert tools["airports"] == tool  # though the database has added fields of its own
    assert tools.load().names == {"airports": "airports"}
    with pytest.raises(LibraryError, match="already"):
        tools.add(document(description="Another."))
    tools.add(document(description="Another."), replace=True)
    assert tools["airports"].description == "Another."
    with pytest.raises(LibraryError, match="is that of airports"):
        tools.add(document("other", tool_id="airports"))


def test_a_broken_document_of_a_database_hides_no_other() -> None:
    tools = store_library(
        document(), document("wrong", tool_type="magic"), document("twin", tool_id="airports")
    )
    assert list(tools) == []
    assert sorted(faults(tools)) == ["airports", "twin", "wrong"]
    tools = store_library(document(), document("wrong", tool_type="magic"))
    assert list(tools) == ["airports"]
    with pytest.raises(ToolError, match="tool_type"):
        tools["wrong"]
    with pytest.raises(KeyError):
        tools["nothing"]


def test_a_key_left_out_is_the_tool_id(tmp_path: Path) -> None:
    given = document()
    del given["_key"]
    FolderLibrary(tmp_path).add(given)
    assert json.loads((tmp_path / "airports.json").read_text(encoding="utf-8")) == document()
