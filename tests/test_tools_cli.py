"""`rag tools`: what a newcomer types, what is printed, and what happens when something is wrong."""

from __future__ import annotations

import io
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ragbook.cli import main
from retriever_tools.tool import parse_tool

Rag = Callable[..., tuple[int, str, str]]

PASSAGES = {
    "_key": "passages",
    "tool_id": "passages",
    "tool_type": "custom_retriever",
    "description": "Searches notes on bees, pumps and seal kits. Never fails.",
    "config": {
        "collection": "Chunks",
        "search_modes": [{"type": "lexical", "field": "content"}],
        "cypher_config": {
            "template": "UNWIND $nodes AS node\nMATCH (c:Chunks {id: node})\n"
            "RETURN c.id AS id, c.content AS content, c.source AS source, $word AS word\n"
            "LIMIT $most",
            "bind_params": {"most": 5, "word": "plain"},
        },
    },
}
ENTITIES = {
    "_key": "entities",
    "tool_id": "entities",
    "tool_type": "custom_retriever",
    "description": "Searches people and things.",
    "config": {
        "collection": "Entities",
        "search_modes": [{"type": "lexical", "field": "entity_name"}],
        "auto_create_indexes": True,
    },
}
CONTENT = {"type": "lexical", "field": "content"}
MEANING = {"type": "semantic", "field": "embedding"}


def with_config(document: dict[str, Any], key: str, **changes: Any) -> dict[str, Any]:
    config = {**document["config"], **changes}
    return {**document, "_key": key, "tool_id": key, "config": config}


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Keep the graph of the notes for all tests, as building it takes some seconds."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def notes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("notes")
    (folder / "bees.md").write_text(
        "# Bees\n\nA honey bee colony keeps its brood nest at about 35 degrees Celsius.\n\n"
        "Worker bees tell each other where flowers are by a waggle dance.\n",
        encoding="utf-8",
    )
    (folder / "pumps.txt").write_text(
        "The pump takes seal kit SK-4471 and needs new oil every 400 hours.\n", encoding="utf-8"
    )
    return folder


@pytest.fixture
def rag(cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Rag:
    for name in ("RAG_PROFILE", "RAG_TOOLS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("RAG_CACHE", str(cache))

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["rag", "tools", *arguments])
        with pytest.raises(SystemExit) as stop:
            main()
        captured = capsys.readouterr()
        return int(stop.value.code or 0), captured.out, captured.err

    return run


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "tools"
    folder.mkdir()
    for document in (PASSAGES, ENTITIES):
        put(folder, document)
    return folder


@pytest.fixture
def ask(rag: Rag, notes: Path, folder: Path) -> Rag:
    def ask(question: str, *arguments: str) -> tuple[int, str, str]:
        return rag("run", question, "--data", str(notes), "--tools", str(folder), *arguments)

    return ask


def put(folder: Path, document: Any) -> Path:
    path = folder / f"{document['_key']}.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    return path


def squeezed(text: str) -> str:
    return re.sub(r"\s+", " ", text)


# Looking at tools


def test_the_tools_of_the_book_are_listed_and_valid(rag: Rag) -> None:
    code, out, err = rag("list", "--json")
    assert code == 0, err
    listed = json.loads(out)
    assert listed["broken"] == []
    assert len(listed["tools"]) > 3
    for document in listed["tools"]:
        parse_tool(document)
    folder = Path(__file__).parents[1] / "data" / "tools"
    code, out, _ = rag("validate", str(folder))
    assert code == 0
    assert len(out.splitlines()) == len(listed["tools"])


@pytest.mark.parametrize("columns", ["40", "80", "200"])
def test_every_tool_and_its_fault_are_listed_at_every_width(
    rag: Rag, folder: Path, monkeypatch: pytest.MonkeyPatch, columns: str
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    (folder / "broken.json").write_text("{")
    code, out, _ = rag("list", "--tools", str(folder))
    assert code == 0
    for part in ("passages", "custom_retriever", "Chunks: lexical content", "broken.json", "JSON"):
        assert part in squeezed(out)
    assert max(map(len, out.splitlines())) <= int(columns)
    assert out.index("entities") < out.index("passages") < out.index("broken.json")
    _, out, _ = rag("list", "--tools", str(folder), "--json")
    (broken,) = json.loads(out)["broken"]
    assert broken["file"] == "broken.json"
    assert [set(fault) for fault in broken["faults"]] == [{"path", "message"}]


def test_an_empty_folder_says_how_to_add_a_tool(rag: Rag, tmp_path: Path) -> None:
    code, out, _ = rag("list", "--tools", str(tmp_path))
    assert code == 0
    assert "rag tools add FILE" in out


def test_the_folder_of_tools_comes_from_the_environment_or_the_data(
    rag: Rag, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, out, _ = rag("list", "--data", str(folder.parent), "--json")  # which has a folder tools
    assert [tool["tool_id"] for tool in json.loads(out)["tools"]] == ["entities", "passages"]
    monkeypatch.setenv("RAG_TOOLS", str(folder))
    _, out, _ = rag("list", "--json")
    assert [tool["tool_id"] for tool in json.loads(out)["tools"]] == ["entities", "passages"]


def test_in_a_folder_with_other_data_the_tools_are_the_books(
    rag: Rag, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "data").mkdir()
    monkeypatch.chdir(tmp_path)
    for given in ([], ["--data", "data"]):
        _, out, _ = rag("list", *given, "--json")
        assert "airport_search" in [tool["tool_id"] for tool in json.loads(out)["tools"]]


def test_show_tells_parameters_with_defaults_and_the_query_line_by_line(
    rag: Rag, folder: Path
) -> None:
    code, out, _ = rag("show", "passages", "--tools", str(folder))
    assert code == 0
    assert 'most=5, word="plain"' in out
    for line in PASSAGES["config"]["cypher_config"]["template"].splitlines():  # type: ignore[index]
        assert f"    {line}\n" in out
    _, out, _ = rag("show", "passages", "--tools", str(folder), "--json")
    assert parse_tool(json.loads(out)) == parse_tool(PASSAGES)


def test_a_tool_that_is_not_there_is_answered_with_those_there_are(rag: Rag, folder: Path) -> None:
    code, out, err = rag("show", "pasages", "--tools", str(folder))
    assert (code, out) == (1, "")
    assert "Did you mean passages?" in err
    assert "entities, passages" in err


def test_a_broken_tool_that_is_asked_for_says_what_is_wrong(rag: Rag, folder: Path) -> None:
    put(folder, with_config(PASSAGES, "wrong", top_k=0))
    code, out, err = rag("show", "wrong", "--tools", str(folder))
    assert (code, out) == (1, "")
    assert "config.top_k" in err


def test_text_of_a_tool_does_not_steer_the_terminal(rag: Rag, folder: Path) -> None:
    put(folder, {**PASSAGES, "description": "Some [bold]markup[/bold] and \u202eturned text."})
    put(folder, {**ENTITIES, "tool_type": "\u202e[red]spell[/red]", "\x1b[31m": 1})
    for command in (["list"], ["show", "passages"], ["show", "entities"], ["validate", folder]):
        _, out, err = rag(
            *map(str, command), *([] if folder in command else ["--tools", str(folder)])
        )
        assert "\x1b" not in out + err
        assert "\u202e" not in out + err
        assert "[bold]markup[/bold]" in out or "[red]spell[/red]" in out + err


# Checking and adding


def test_every_fault_of_every_file_is_told_by_its_path(
    rag: Rag, folder: Path, tmp_path: Path
) -> None:
    one = put(tmp_path, with_config(PASSAGES, "one", top_k=0, magic=1))
    two = put(tmp_path, {**PASSAGES, "_key": "two", "tool_type": "spell"})
    good = folder / "passages.json"
    code, out, _ = rag("validate", str(one), str(good), str(two))
    assert code == 1
    lines = out.splitlines()
    assert [line.split(": ")[:2] for line in lines if not line.startswith("ok")] == [
        [str(one), "$.config.top_k"],
        [str(one), "$.config.magic"],
        [str(two), "$.tool_type"],
    ]
    assert f"ok  {good}" in lines
    code, out, _ = rag("validate", str(one), str(good), "--json")
    assert code == 1
    first, second = json.loads(out)
    assert [fault["path"] for fault in first["faults"]] == ["$.config.top_k", "$.config.magic"]
    assert second == {"file": str(good), "ok": True}


def test_a_folder_is_checked_as_a_whole(rag: Rag, folder: Path) -> None:
    code, out, _ = rag("validate", str(folder))
    assert code == 0
    assert out.splitlines() == [
        f"ok  {folder / 'entities.json'}",
        f"ok  {folder / 'passages.json'}",
    ]
    put(folder, {**PASSAGES, "_key": "twin"})
    code, out, _ = rag("validate", str(folder))
    assert code == 1
    assert "passages.json and twin.json" in out


def test_a_folder_without_a_tool_and_a_file_that_is_not_there_are_faults(
    rag: Rag, tmp_path: Path
) -> None:
    assert rag("validate", str(tmp_path))[0] == 1
    code, out, _ = rag("validate", str(tmp_path / "nothing.json"))
    assert code == 1
    assert "nothing.json" in out
    assert rag("validate")[0] == 2
    assert rag("validate", "")[0] == 2


class Stdin(io.TextIOWrapper):
    def __init__(self, text: str) -> None:
        super().__init__(io.BytesIO(text.encode()), encoding="utf-8")


def test_a_tool_is_checked_and_added_from_stdin(
    rag: Rag, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    document = with_config(PASSAGES, "third")
    monkeypatch.setattr(sys, "stdin", Stdin(json.dumps(document)))
    assert rag("validate", "-")[:2] == (0, "ok  -\n")
    monkeypatch.setattr(sys, "stdin", Stdin(json.dumps(document)))
    code, out, err = rag("add", "-", "--tools", str(folder))
    assert (code, out) == (0, f"added  third to {folder}\n"), err
    assert json.loads((folder / "third.json").read_text()) == document
    monkeypatch.setattr(sys, "stdin", Stdin("{"))
    code, out, _ = rag("validate", "-")
    assert code == 1
    assert out.startswith("-: $: is not JSON")


def test_nothing_is_overwritten_unless_told(rag: Rag, folder: Path, tmp_path: Path) -> None:
    new = put(tmp_path, {**PASSAGES, "description": "New."})
    code, out, err = rag("add", str(new), "--tools", str(folder))
    assert (code, out) == (1, "")
    assert "already" in err
    assert "--replace" in err
    assert json.loads((folder / "passages.json").read_text()) == PASSAGES
    assert rag("add", str(new), "--tools", str(folder), "--replace")[0] == 0
    assert json.loads((folder / "passages.json").read_text())["description"] == "New."


def test_what_is_no_tool_is_not_added(rag: Rag, folder: Path, tmp_path: Path) -> None:
    before = sorted(path.name for path in folder.iterdir())
    wrong = put(tmp_path, with_config(PASSAGES, "wrong", top_k=0))
    code, _, err = rag("add", str(wrong), "--tools", str(folder))
    assert code == 1
    assert "$.config.top_k" in err
    assert sorted(path.name for path in folder.iterdir()) == before


def test_the_schema_is_json_and_names_every_field(rag: Rag) -> None:
    code, out, _ = rag("schema")
    assert code == 0
    schema = json.loads(out)
    assert set(PASSAGES) <= set(schema["properties"])


# Running


def test_an_answer_cites_and_tells_what_each_tool_did(ask: Rag) -> None:
    code, out, err = ask(
        *("Which seal kit does the pump take?", "--tool", "passages", "--tool", "entities")
    )
    assert code == 0, err
    assert "SK-4471" in out
    assert "[CITE:1]" in out
    for part in ("Citations", "pumps.txt#1", "Tools", "passages", "1 document ", "ran", "none"):
        assert part in out


def test_the_graph_is_built_once_and_how_far_it_is_is_told(
    rag: Rag, folder: Path, tmp_path: Path
) -> None:
    notes = tmp_path / "other"
    notes.mkdir()
    (notes / "a.txt").write_text("The lathe turns oak at 900 revolutions.\n")
    given = ("--data", str(notes), "--tools", str(folder), "--tool", "passages")
    code, out, err = rag("run", "How fast is the lathe?", *given)
    assert code == 0
    assert "900 revolutions" in out
    assert err.splitlines() == [
        "Building the graph; it is kept for the next time.",
        "  Finding entities and their relations",
        "  Embedding 1 text",
        "  Writing the graph",
    ]
    assert "cr_Chunks_content" in out  # an index was created, and the answer says so
    code, out, err = rag("run", "How fast is the lathe?", *given)
    assert (code, err) == (0, "")
    assert "cr_Chunks_content" not in out


def test_a_damaged_graph_in_the_cache_is_built_again_by_run_and_build(
    rag: Rag, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAG_CACHE", str(tmp_path / "cache"))
    notes = tmp_path / "other"
    notes.mkdir()
    (notes / "a.txt").write_text("The lathe turns oak at 900 revolutions.\n")
    run = ("run", "How fast is the lathe?", "--tools", str(folder), "--tool", "passages")
    for number, command in enumerate([("build",), run, ("build",)]):
        code, _, err = rag(*command, "--data", str(notes))
        assert code == 0, err
        assert err.count("is damaged, so it is built again") == (number > 0), err
        (graph,) = (tmp_path / "cache" / "graphs").glob("*.lbug")
        graph.write_bytes(graph.read_bytes()[:-9000])


@pytest.mark.parametrize("columns", ["40", "80", "200"])
def test_an_answer_fits_every_width(
    ask: Rag, monkeypatch: pytest.MonkeyPatch, columns: str
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    _, out, _ = ask("Which seal kit does the pump take?", "--tool", "passages")
    assert "pumps.txt#1" in out
    assert "1 document" in out
    tables = out[out.index("Citations") :]
    assert max(map(len, tables.splitlines())) <= int(columns)


def test_json_is_the_answer_of_the_service(ask: Rag) -> None:
    code, out, _ = ask("Which seal kit does the pump take?", "--tool", "passages", "--json")
    assert code == 0
    answer = json.loads(out)
    assert "SK-4471" in answer["result"]
    assert answer["citations"]["1"]["document_id"] == "pumps.txt#1"
    assert answer["tools"][0]["tool_id"] == "passages"
    assert answer["tools"][0]["milliseconds"] > 0
    assert answer["metadata"] == ""
    _, out, _ = ask(
        *("Which seal kit does the pump take?", "--tool", "passages", "--json", "--show-context")
    )
    assert "SK-4471" in json.loads(json.loads(out)["metadata"])["formatted_context"]


def test_the_context_is_shown_when_asked_for(ask: Rag) -> None:
    _, out, _ = ask("Which seal kit does the pump take?", "--tool", "passages", "--show-context")
    assert out.startswith("Context\n")
    assert out.index("[CITE:1]\n") < out.index("Answer\n")


def test_parameters_are_json_and_strings_for_strings(
    ask: Rag, monkeypatch: pytest.MonkeyPatch
) -> None:
    from retriever_tools import request

    seen: list[dict[str, Any]] = []
    real = request.check_request

    def check(given: Any, *rest: Any) -> None:
        seen.append(given.bind_params)
        real(given, *rest)

    monkeypatch.setattr(request, "check_request", check)
    asked = ("How do bees tell where flowers are?", "--tool", "passages")
    for given, expected in (
        (["most=1", "word=7"], {"most": 1, "word": "7"}),
        (['word="a=b"'], {"word": "a=b"}),
        (["word=a b", "most=2"], {"word": "a b", "most": 2}),
        (["word="], {"word": ""}),
    ):
        code, _, err = ask(*asked, *(part for text in given for part in ("--param", text)))
        assert code == 0, err
        assert seen[-1] == expected
    _, out, _ = ask("bees flowers nest", "--tool", "passages", "--param", "most=1", "--json")
    assert json.loads(out)["tools"][0]["documents"] == 1


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("mosst=3", 'There are: most (default 5), word (default "plain").'),
        ("nodes=3", "There are: most"),
        ("most", "NAME=VALUE"),
        ("=3", "NAME=VALUE"),
    ],
)
def test_a_parameter_that_no_tool_has_is_answered_with_those_there_are(
    ask: Rag, given: str, message: str
) -> None:
    code, out, err = ask("bees", "--tool", "passages", "--param", given)
    assert (code, out) == (2, "")
    assert message in squeezed(err.replace("│", " "))


def test_a_parameter_of_the_wrong_type_is_an_error(ask: Rag) -> None:
    code, out, err = ask("bees", "--tool", "passages", "--param", "most=many")
    assert (code, out) == (1, "")
    assert "most" in err


def test_top_k_is_that_of_the_run(ask: Rag) -> None:
    _, out, _ = ask("bees seal flowers nest", "--tool", "passages", "--top-k", "1", "--json")
    assert len(json.loads(out)["tools"][0]["starting_nodes"]) == 1
    assert ask("bees", "--top-k", "0")[0] == 2


def test_only_the_partitions_named_are_searched(ask: Rag) -> None:
    asked = ("bees pump", "--tool", "passages", "--partition", "bees.md")
    _, out, _ = ask(*asked, "--json")
    found = json.loads(out)["citations"].values()
    assert {citation["source"] for citation in found} == {"bees.md"}
    _, out, _ = ask(*asked)
    assert "passages searched the partitions bees.md (as asked)." in squeezed(out)


def test_one_tool_that_fails_does_not_keep_the_others_from_answering(
    ask: Rag, folder: Path
) -> None:
    put(folder, with_config(PASSAGES, "lost", collection="Nowhere"))
    asked = ("Which seal kit does the pump take?", "--tool", "lost")
    code, out, _ = ask(*asked, "--tool", "passages")
    assert code == 0
    assert "SK-4471" in out
    assert "lost failed" in out
    assert "Nowhere" in out
    code, out, _ = ask(*asked)
    assert code == 1
    assert "lost failed" in out
    code, out, _ = ask(*asked, "--json")
    assert code == 1
    assert [one["tool_id"] for one in json.loads(out)["tools"]] == ["lost"]
    assert "Nowhere" in json.loads(out)["error"]


def test_without_leave_no_index_is_created_and_the_error_names_it(
    rag: Rag, folder: Path, notes: Path, ask: Rag
) -> None:
    rag("clean", "--data", str(notes))
    asked = ("Which seal kit does the pump take?", "--tool", "passages", "--no-create-indexes")
    code, out, _ = ask(*asked)
    assert code == 1
    assert "cr_Chunks_content" in out
    code, out, _ = ask(*asked, "--tool", "entities")  # whose own setting creates it
    assert code == 0
    assert "cr_Entities_entity_name" in out


def test_what_fits_is_chosen_where_no_tool_is_named(ask: Rag) -> None:
    code, out, _ = ask("What do the notes say about bees, pumps and seal kits?", "--json")
    assert code == 0
    assert [tool["tool_id"] for tool in json.loads(out)["tools"]] == ["passages"]


FAR_OFF = "Who won the chess final in 1972?"


@pytest.fixture
def none_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    from retriever_tools.tool_choice import ToolChooser

    monkeypatch.setattr(ToolChooser, "choose", lambda *_, **__: [])


@pytest.mark.usefixtures("none_fits")
def test_where_none_fits_the_nearest_is_run_and_that_is_said(ask: Rag) -> None:
    code, out, err = ask(FAR_OFF, "--json")
    assert code == 0, err
    assert [tool["tool_id"] for tool in json.loads(out)["tools"]] == ["entities"]  # people
    assert "so entities is run, whose description is nearest." in err


@pytest.mark.usefixtures("none_fits")
def test_where_none_fits_the_one_that_searches_everything_is_run(ask: Rag, folder: Path) -> None:
    unified = {"_key": "unified", "tool_id": "unified", "tool_type": "unified", "config": {}}
    put(folder, {**unified, "description": "Searches everything at once."})
    code, out, err = ask(FAR_OFF, "--json")
    assert code == 0, err
    assert "so unified is run, which searches everything." in err
    assert all(tool["tool_id"].startswith("unified") for tool in json.loads(out)["tools"])


@pytest.mark.parametrize("how", [(), ("--deep",)])
def test_tools_for_which_the_database_has_nothing_are_not_chosen_and_named_once(
    ask: Rag, folder: Path, how: tuple[str, ...]
) -> None:
    tickets = {**with_config(PASSAGES, "tickets", collection="Tickets")}
    put(folder, {**tickets, "description": "Searches the help desk: signing in, invoices."})
    code, out, err = ask("Which invoices does the help desk sign in?", "--json", *how)
    assert code == 0, err
    assert "tickets" not in {tool["tool_id"] for tool in json.loads(out)["tools"]}
    said = err + " ".join(json.loads(out)["notes"])
    assert said.count("Left out, as this database lacks what they need: tickets") == 1
    assert "no collection 'Tickets'" in said
    code, _, err = ask("How do I sign in?", "--tool", "tickets")
    assert code == 1  # whoever names a tool is told why it cannot be run


def test_one_tool_alone_is_run_without_a_choice(ask: Rag, folder: Path) -> None:
    (folder / "entities.json").unlink()
    code, out, err = ask(FAR_OFF, "--json")
    assert (code, err) == (0, "")
    assert [tool["tool_id"] for tool in json.loads(out)["tools"]] == ["passages"]


@pytest.mark.parametrize("how", [(), ("--deep",)])
def test_where_no_tool_can_be_run_that_is_said_with_what_is_missing(
    ask: Rag, folder: Path, how: tuple[str, ...]
) -> None:
    for name in ("passages", "entities"):
        (folder / f"{name}.json").unlink()
    put(folder, with_config(PASSAGES, "tickets", collection="Tickets"))
    code, out, err = ask("How do I sign in?", *how)
    assert code == 1
    assert "no collection 'Tickets'" in squeezed(out + err)


@pytest.mark.parametrize("columns", ["40", "80"])
def test_what_was_found_is_shown_where_the_model_saw_no_answer_in_it(
    ask: Rag, folder: Path, monkeypatch: pytest.MonkeyPatch, columns: str
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    put(folder, with_config(PASSAGES, "quiet", show_citations=False))
    code, out, _ = ask("What are the main themes of the pump?", "--tool", "quiet")
    assert code == 0
    out = squeezed(out)
    assert out.startswith("The context does not contain the answer.")
    assert "Found pumps.txt#1 The pump takes seal kit SK-4471" in out
    assert "1 passage was found, and the model that answers saw no answer there." in out
    assert "see rag doctor" in out  # for a model that can sum up
    _, out, _ = ask("What does the pump take?", "--tool", "quiet")
    assert "saw no answer" not in squeezed(out)


def test_loading_the_embedding_model_is_no_part_of_a_tools_time(
    ask: Rag, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ragbook.tools_models import NamedEmbeddings
    from retriever_tools import request

    order: list[str] = []
    real, embed = request.run_tools, NamedEmbeddings.embed_query

    def run(*arguments: Any, **options: Any) -> Any:
        order.append("tools")
        return real(*arguments, **options)

    def embedded(self: NamedEmbeddings, text: str) -> list[float]:
        order.append("embedding")
        return embed(self, text)

    monkeypatch.setattr(request, "run_tools", run)
    monkeypatch.setattr(NamedEmbeddings, "embed_query", embedded)
    put(folder, with_config(PASSAGES, "near", search_modes=[MEANING]))
    ask("How warm is a brood nest?", "--tool", "near")
    assert order[:2] == ["embedding", "tools"]
    order.clear()
    ask("How warm is a brood nest?", "--tool", "passages")  # which needs no model
    assert order == ["tools"]


def test_a_broken_tool_does_not_keep_the_others_from_answering(ask: Rag, folder: Path) -> None:
    (folder / "broken.json").write_text("{")
    assert ask("Which seal kit does the pump take?", "--tool", "passages")[0] == 0
    code, _, err = ask("Which seal kit does the pump take?", "--tool", "broken")
    assert code == 1
    assert "broken.json" in err


def test_a_deep_search_shows_its_steps(ask: Rag) -> None:
    code, out, err = ask("Which seal kits do the notes name for pumps?", "--deep")
    assert code == 0, err
    assert "Steps" in out
    assert "passages" in out


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([" "], 2),
        (["caf\udce9"], 2),
        (["bees", "--tool", "nothing"], 1),
        (["bees", "--profile", "ollama"], 1),
        (["bees", "--arango-database", "x"], 2),
        (["bees", "--arango-url", "http://127.0.0.1:9"], 2),  # beside --data
    ],
)
def test_what_is_wrong_is_said_before_anything_is_built(
    ask: Rag, monkeypatch: pytest.MonkeyPatch, arguments: list[str], expected: int
) -> None:
    from ragbook import graph_data

    monkeypatch.setenv("OLLAMA_HOST", "http://127.0.0.1:9")
    monkeypatch.setattr(graph_data, "folder_store", None)
    code, out, err = ask(*arguments)
    assert (code, out) == (expected, "")
    assert "Error" in err
    assert "Traceback" not in err


def test_an_interrupted_run_ends_with_130(ask: Rag, monkeypatch: pytest.MonkeyPatch) -> None:
    from retriever_tools import request

    def interrupt(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(request, "answer", interrupt)
    code, out, err = ask("bees", "--tool", "passages")
    assert (code, out) == (130, "")
    assert "Interrupted" in err


def test_a_model_that_fails_is_one_clear_error(ask: Rag, monkeypatch: pytest.MonkeyPatch) -> None:
    from ragbook.extractive import ExtractiveChatModel

    def fail(*_: Any, **__: Any) -> None:
        raise ConnectionResetError("the server has gone")

    monkeypatch.setattr(ExtractiveChatModel, "_generate", fail)
    code, out, err = ask("Which seal kit does the pump take?", "--tool", "passages")
    assert (code, out) == (1, "")
    assert "The model could not answer (ConnectionResetError: the server has gone)" in err


def test_only_a_failure_of_the_chat_model_is_named_as_one(
    ask: Rag, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ragbook.extractive import ExtractiveChatModel
    from retriever_tools import request

    given = ("Which seal kit does the pump take?", "--tool", "passages")
    with monkeypatch.context() as patch:
        patch.setattr(request, "merge_context", lambda *_: missing_name)  # type: ignore[name-defined]  # noqa: F821
        with pytest.raises(NameError, match="missing_name"):
            ask(*given)

    def fail(*_: Any, **__: Any) -> None:
        raise ConnectionResetError("the server has gone")

    monkeypatch.setattr(ExtractiveChatModel, "_generate", fail)
    code, _, err = ask(*given, "--deep")
    assert code == 1
    assert "The model could not answer (ConnectionResetError" in err


def test_an_embedding_model_that_fails_while_tools_are_chosen_is_one_clear_error(
    ask: Rag, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ragbook.embedding_cache import CachedEmbeddings

    def fail(*_: Any, **__: Any) -> None:
        raise ConnectionResetError("the server has gone")

    monkeypatch.setattr(CachedEmbeddings, "embed_documents", fail)
    code, out, err = ask("Which seal kit does the pump take?")
    assert (code, out) == (1, "")
    assert "The embedding model failed (ConnectionResetError: the server has gone)" in err


def test_passages_that_the_answer_does_not_cite_are_counted_and_listed_on_request(
    ask: Rag, folder: Path
) -> None:
    put(folder, with_config(PASSAGES, "wide", top_k=9, search_modes=[CONTENT]))
    given = ("Which seal kit does the pump take, and what do bees keep at 35 degrees?",)
    _, out, _ = ask(*given, "--tool", "wide", "--json")
    answer = json.loads(out)
    cited = set(re.findall(r"\[CITE:(\d+)\]", answer["result"]))
    read = {number: one["document_id"] for number, one in answer["citations"].items()}
    assert cited
    assert set(read) - cited
    _, out, _ = ask(*given, "--tool", "wide")
    table, _, more = out[out.index("Citations") :].partition("more passage")
    assert more
    assert [name for number, name in read.items() if number not in cited and name in table] == []
    assert all(read[number] in table for number in cited)
    _, out, _ = ask(*given, "--tool", "wide", "--show-context")
    table = out[out.index("Citations") :]
    assert all(name in table for name in read.values())
    assert "more passage" not in table


@pytest.mark.parametrize("question", ["Which flights leave Brindle Quay?"])
def test_a_newcomers_first_question_is_answered(rag: Rag, question: str) -> None:
    code, out, err = rag("run", question)
    assert code == 0, err
    assert "airport_search" in out
    assert out.startswith("Flights leave Brindle Quay International Airport for Vorrick Moor")


def test_the_tool_of_the_readme_works_in_its_three_steps(
    rag: Rag, notes: Path, tmp_path: Path
) -> None:
    readme = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
    section = readme[readme.index("## Retrievers as data") :]
    section = section[: section.index("\n## ", 1)]
    (document,) = re.findall(r"```json\n(.*?)```", section, flags=re.DOTALL)
    path, tools = tmp_path / "notes.json", tmp_path / "my-tools"
    path.write_text(document, encoding="utf-8")
    steps = re.findall(r"`rag tools ((?:validate|add|run) .*?)`", section)
    assert [step.split()[0] for step in steps] == ["validate", "add", "run"]
    places = {"notes.json": path, "my-tools": tools, "path/to/your/notes": notes}
    for step in steps:
        question = re.findall('"(.*)"', step)
        words = re.sub('"(.*)"', "?", step).split()
        arguments = [str(places.get(word, word)) for word in words]
        arguments = [question[0] if word == "?" else word for word in arguments]
        code, out, err = rag(*arguments)
        assert code == 0, err
    assert "notes" in out
    code, out, _ = rag("run", "Which kit does the pump take?", *arguments[2:], "--tool", "notes")
    assert "SK-4471" in out
    assert "graph query" in out
    assert "did not run" not in out


# The database


def test_tools_are_kept_in_the_database_too(rag: Rag, notes: Path, folder: Path) -> None:
    where = ("--store", "database", "--data", str(notes))
    code, _, err = rag("add", str(folder / "passages.json"), *where, "--replace")
    assert code == 0, err
    _, out, _ = rag("list", *where, "--json")
    assert [tool["tool_id"] for tool in json.loads(out)["tools"]] == ["passages"]
    assert rag("add", str(folder / "passages.json"), *where)[0] == 1
    question = "Which seal kit does the pump take?"
    code, out, err = rag("run", question, *where, "--tool", "passages")
    assert code == 0, err
    assert "SK-4471" in out


def test_build_writes_a_graph_and_clean_removes_its_indexes_only(
    rag: Rag, folder: Path, tmp_path: Path
) -> None:
    notes = tmp_path / "other"
    notes.mkdir()
    (notes / "a.txt").write_text("The lathe turns oak at 900 revolutions a minute.\n")
    given = ("--data", str(notes))
    code, out, _ = rag("clean", *given)
    assert (code, out) == (0, "There is nothing to remove.\n")
    code, out, _ = rag("build", *given)
    assert code == 0
    path = Path(out.removeprefix("The graph is built: ").strip())
    assert path.exists()
    assert rag("build", *given)[1] == f"The graph is there already: {path}\n"
    assert rag("run", "lathe", *given, "--tools", str(folder), "--tool", "passages")[0] == 0
    code, out, _ = rag("clean", *given)
    assert (code, out) == (0, "removed  cr_Chunks_content\n")
    assert path.exists()
    code, out, _ = rag("clean", *given, "--json")
    assert json.loads(out) == {"removed": []}


def test_a_graph_is_written_where_one_says_and_over_nothing(
    rag: Rag, notes: Path, tmp_path: Path
) -> None:
    from retriever_tools.ladybug_store import LadybugStore

    path = tmp_path / "new" / "notes.lbug"
    code, out, err = rag("build", "--data", str(notes), "--output", str(path))
    assert (code, out) == (0, f"The graph is built: {path}\n"), err
    store = LadybugStore(path)
    assert store.has_collection("Chunks")
    store.close()
    code, out, err = rag("build", "--data", str(notes), "--output", str(path))
    assert (code, out) == (1, "")
    assert "is there already" in err
    (tmp_path / "a-file").write_text("mine")
    assert rag("build", "--output", str(tmp_path / "a-file" / "x.lbug"))[0] == 1
    assert (tmp_path / "a-file").read_text() == "mine"


def test_build_run_and_clean_work_on_arangodb(
    rag: Rag, notes: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("arango")
    from arango_server import ArangoServer

    monkeypatch.setenv("ARANGO_USERNAME", "robin")
    monkeypatch.setenv("ARANGO_PASSWORD", "kiwi-7f3a")
    with ArangoServer("birds", "robin", "kiwi-7f3a") as server:
        there = ("--arango-url", server.url, "--arango-database", "birds")
        code, out, err = rag("build", "--data", str(notes), *there)
        assert code == 0, err
        assert "wrote  Chunks: 3" in out
        code, out, err = rag("build", "--data", str(notes), *there)
        assert (code, out) == (1, "")
        assert "The database has Chunks, Entities" in err
        chunks = with_config(ENTITIES, "chunks", collection="Chunks", search_modes=[CONTENT])
        asked = ("--tools", str(folder), "--tool", put(folder, chunks).stem, *there)
        code, out, err = rag("run", "Which seal kit does the pump take?", *asked)
        assert code == 0, err
        assert "SK-4471" in out
        assert "cr_Chunks_content" in out
        code, out, _ = rag("clean", *there)
        assert code == 0
        assert {"removed  cr_Chunks_content", "removed  cr_Chunks_view"} == set(out.splitlines())


def test_arangodb_is_asked_where_its_address_is_given_and_no_password_is_shown(
    rag: Rag, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("arango")
    monkeypatch.setenv("ARANGO_PASSWORD", "hunter2-of-the-server")
    code, out, err = rag(
        *("run", "bees", "--tools", str(folder), "--tool", "entities"),
        *("--arango-url", "http://127.0.0.1:9"),
    )
    assert code == 1
    assert "127.0.0.1:9" in out + err
    assert "hunter2" not in out + err
    code, out, err = rag("clean", "--arango-url", "http://root:hunter2@127.0.0.1:9")
    assert (code, out) == (1, "")
    assert "hunter2" not in err
