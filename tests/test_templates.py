"""What a tool's graph query may say, held against a real database that is opened to read."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ladybug
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from retriever_tools.templates import (
    CYPHER_KEYWORDS,
    MAX_TEMPLATE,
    TemplateError,
    check_aql,
    check_cypher,
)

# What a stranger may try to get out of a value. Each is also the id and name of a node.
HOSTILE_VALUES = [
    "'",
    '"',
    "`",
    "\\",
    "\\'",
    "''",
    "') RETURN 1 //",
    "' OR '1'='1",
    '" OR 1=1 //',
    "x'}) DETACH DELETE n //",
    "'; CREATE (:Entities {id: 'bad'}); //",
    "; COPY (RETURN 1) TO 'stolen.csv'",
    "$nodes",
    "@nodes",
    "@@relations_collection",
    "${nodes}",
    "{{nodes}}",
    "%s",
    "{0}",
    "/*",
    "*/ CREATE (:Entities {id: 'bad'}) /*",
    "// comment",
    "\\u0027 OR true",
    "\\x27",
    "line\nbreak",
    "carriage\rreturn",
    "tab\there",
    "non\u00a0breaking",
    "zero\u200bwidth",
    "right\u202eto left",
    "ʼ modifier apostrophe",
    "＇ fullwidth quote",
    "СREATE with a Cyrillic letter",
    "null",
    "true",
    "[1, 2]",
    "LOAD FROM '/etc/hostname' RETURN *",
    "../../etc/hostname",
    "𝒳 outside the basic plane",
    "CALL show_tables() RETURN *",
    '", 42 AS stolen //"',
    '["\\u0027"]',
    " leading and trailing ",
]

# (template, rows) over the graph below; $nodes is ["e1", "e2"], $word is "kite".
ALLOWED: list[tuple[str, list[list[Any]]]] = [
    ("MATCH (n:Entities) WHERE n.id IN $nodes RETURN n.id ORDER BY n.id", [["e1"], ["e2"]]),
    ("match (n:Entities) where n.id in $nodes return n.id order by n.id", [["e1"], ["e2"]]),
    (
        "MATCH (n:Entities:Chunks) WHERE n.id IN $nodes OR n.id = 'c1' RETURN n.id ORDER BY n.id",
        [["c1"], ["e1"], ["e2"]],
    ),
    (
        "MATCH (n:Entities|Chunks) WHERE n.id IN $nodes RETURN label(n), n.id ORDER BY n.id",
        [["Entities", "e1"], ["Entities", "e2"]],
    ),
    (
        "MATCH (n:Entities)-[r:RELATED_TO*1..2]->(m:Entities) WHERE n.id IN $nodes "
        "RETURN DISTINCT m.id ORDER BY m.id",
        [["e2"], ["e3"]],
    ),
    (
        "MATCH (n:Entities)-[:RELATED_TO|MENTIONED_IN]->(m) WHERE n.id IN $nodes "
        "RETURN m.id ORDER BY m.id",
        [["c1"], ["e2"], ["e3"]],
    ),
    (
        "MATCH (n:Entities {id: 'e1'})-[:RELATED_TO* SHORTEST 1..3]->(m:Entities {id: 'e3'}) "
        "WHERE n.id IN $nodes RETURN m.id",
        [["e3"]],
    ),
    (
        "MATCH (n:Entities {id: 'e1'})-[:RELATED_TO* ALL SHORTEST 1..3]->(m {id: 'e3'}) "
        "WHERE n.id IN $nodes RETURN m.id",
        [["e3"]],
    ),
    (
        "MATCH (n:Entities {id: 'e1'})-[r:RELATED_TO* WSHORTEST(weight) 1..3]->"
        "(m:Entities {id: 'e3'}) WHERE n.id IN $nodes RETURN m.id, cost(r)",
        [["e3", 0.75]],
    ),
    (
        "MATCH (n:Entities {id: 'e1'})-[:RELATED_TO* ALL WSHORTEST(weight) 1..3]->(m) "
        "WHERE n.id IN $nodes RETURN m.id ORDER BY m.id",
        [["e2"], ["e3"]],
    ),
    (
        "MATCH (n:Entities {id: 'e1'})-[:RELATED_TO* TRAIL 1..3]->(m) WHERE n.id IN $nodes "
        "RETURN m.id ORDER BY m.id",
        [["e2"], ["e3"]],
    ),
    (
        "MATCH (n:Entities {id: 'e1'})-[:RELATED_TO* ACYCLIC 1..3]->(m) WHERE n.id IN $nodes "
        "RETURN m.id ORDER BY m.id",
        [["e2"], ["e3"]],
    ),
    (
        "MATCH (a:Entities)-[e:RELATED_TO*1..2 (r, n | WHERE r.weight > 0.3 | {r.weight}, {n.id})]"
        "->(b) WHERE a.id IN $nodes RETURN b.id",
        [["e2"]],
    ),
    (
        "MATCH (n:Entities) WHERE n.id IN $nodes OPTIONAL MATCH (n)-[m:MENTIONED_IN]->(c:Chunks) "
        "RETURN n.id AS node_id, collect({chunk_id: c.id, content: c.content}) AS chunks "
        "ORDER BY node_id LIMIT 1",
        [["e1", [{"chunk_id": "c1", "content": "A red kite."}]]],
    ),
    ("RETURN list_transform($nodes, x -> x + '!')", [[["e1!", "e2!"]]]),
    ("RETURN list_filter($nodes, x -> x <> 'e1')", [[["e2"]]]),
    ("RETURN list_reduce($nodes, (x, y) -> x + y)", [["e1e2"]]),
    ("RETURN any(x IN $nodes WHERE x = 'e1'), none(x IN $nodes WHERE x = 'z')", [[True, True]]),
    ("RETURN all(x IN $nodes WHERE x <> ''), single(x IN $nodes WHERE x = 'e1')", [[True, True]]),
    ("UNWIND $nodes AS id RETURN CASE WHEN id = 'e1' THEN 'one' ELSE id END", [["one"], ["e2"]]),
    ("UNWIND $nodes AS id RETURN CASE id WHEN 'e1' THEN 1 END", [[1], [None]]),
    (
        "MATCH (n:Entities) WHERE n.id IN $nodes AND EXISTS { MATCH (n)-[:MENTIONED_IN]->() } "
        "RETURN n.id, COUNT { MATCH (n)-[:RELATED_TO]->(m) WHERE m.id <> 'x' }",
        [["e1", 1]],
    ),
    (
        "MATCH (n:Entities) WHERE n.id IN $nodes AND (n)-[:MENTIONED_IN]->() RETURN n.id",
        [["e1"]],
    ),
    ("UNWIND $nodes AS x RETURN x UNION RETURN 'e1' AS x", [["e1"], ["e2"]]),
    ("UNWIND $nodes AS x RETURN x UNION ALL RETURN 'e9' AS x", [["e1"], ["e2"], ["e9"]]),
    ("MATCH (n:Entities) WHERE n.id IN $nodes RETURN n.set, n. /* of */ load", [[1, 2], [1, 2]]),
    ("MATCH (n:Entities) WHERE n.id IN $nodes RETURN n.`set` AS `delete`", [[1], [1]]),
    ("MATCH (n:Entities {id: $nodes[1]}) RETURN n.id", [["e1"]]),
    (
        "MATCH (n:Entities)<-[:RELATED_TO]-(m) WHERE m.id IN $nodes AND n.name STARTS WITH 'o' "
        "AND NOT n.name ENDS WITH 'x' AND n.name CONTAINS 'w' AND n.name IS NOT NULL RETURN n.name",
        [["owl"]],
    ),
    (
        "MATCH (n:Entities) WHERE n.id IN $nodes WITH n ORDER BY n.id DESC SKIP 1 LIMIT 1 "
        "MATCH (n)-[:RELATED_TO]->(m) RETURN n.id, m.id",
        [["e1", "e2"]],
    ),
    (
        "RETURN size($nodes), count(*), 'CREATE (n); // /* ' AS text;",
        [[2, 1, "CREATE (n); // /* "]],
    ),
    ("// SET is only in this comment\nRETURN /* DELETE ; ' */ $nodes[2] // ; DROP", [["e2"]]),
    (
        "RETURN 'it\\'s', \"a \\\"b\\\"\", '\\u0041\\x', $nodes[1]".replace("\\x'", "'"),
        [["it's", 'a "b"', "A", "e1"]],
    ),
    (
        "MATCH (from:Entities)-[:RELATED_TO]->(to) WHERE from.id IN $nodes "
        "RETURN to.id ORDER BY to.id",
        [["e2"], ["e3"]],
    ),
    (
        "RETURN CAST(1 AS STRING), CAST([1] AS INT64[]), CAST(1 AS DECIMAL(5, 2)) = 1, $nodes[1]",
        [["1", [1], True, "e1"]],
    ),
    (
        "RETURN {a: 1, `set`: [1, 2][1]}.a + .5 * 1.5e1 - -2 ^ 2 % 3, $nodes[1:2]",
        [[1 + 7.5 - (-2) ** 2 % 3, ["e1", "e2"]]],
    ),
    ("MATCH (n:Entities) WHERE n.name = $word AND n.id IN $nodes RETURN n.id\r\n", [["e1"]]),
    ("MATCH (`naïve`:Entities) WHERE `naïve`.id IN $nodes RETURN count(DISTINCT `naïve`)", [[2]]),
]


# (template, what the message names). Each writes, reads a file, runs a procedure, changes a
# setting, is a second statement, or hides such a thing from a careless reader.
def words(text: str) -> list[str]:
    return text.split(" ")


N = "MATCH (n) WHERE n.id IN $nodes "
REFUSED: list[tuple[str, str]] = [
    (N + "CREATE (:Entities {id: 'x'}) RETURN n", "CREATE"),
    (N + "MERGE (:Entities {id: 'x'}) RETURN n", "MERGE"),
    (N + "SET n.name = 'x' RETURN n", "SET"),
    (N + "DELETE n RETURN 1", "DELETE"),
    (N + "DETACH DELETE n RETURN 1", "DETACH"),
    (N + "REMOVE n.name RETURN n", "REMOVE"),
    (N + "FOREACH (x IN [1] | CREATE (:Entities)) RETURN n", "FOREACH"),
    ("COPY (" + N + "RETURN n.id) TO 'out.csv'", "COPY"),
    ("COPY Entities FROM 'in.csv' RETURN $nodes", "COPY"),
    ("EXPORT DATABASE 'folder' RETURN $nodes", "EXPORT"),
    ("IMPORT DATABASE 'folder' RETURN $nodes", "IMPORT"),
    ("LOAD FROM '/etc/hostname' (file_format = 'csv') RETURN *, $nodes", "LOAD"),
    (N + "LOAD FROM '/etc/hostname' (file_format = 'csv') RETURN *", "LOAD"),
    ("WITH $nodes AS x LOAD WITH HEADERS (a STRING) FROM 'f.csv' RETURN *", "LOAD"),
    ("LOAD EXTENSION httpfs RETURN $nodes", "LOAD"),
    ("INSTALL httpfs RETURN $nodes", "INSTALL"),
    ("FORCE INSTALL httpfs RETURN $nodes", "FORCE"),
    ("UNINSTALL httpfs RETURN $nodes", "UNINSTALL"),
    ("UPDATE httpfs RETURN $nodes", "UPDATE"),
    ("ATTACH 'other.db' AS o (dbtype lbug) RETURN $nodes", "ATTACH"),
    ("DETACH o RETURN $nodes", "DETACH"),
    ("USE o RETURN $nodes", "USE"),
    ("CALL show_tables() RETURN *, $nodes", "CALL"),
    (N + "CALL show_tables() YIELD name RETURN name", "CALL"),
    (N + "CALL { WITH n RETURN 1 AS x } RETURN x", "CALL"),
    ("CALL threads = 1 RETURN $nodes", "CALL"),
    ("CALL current_setting('threads') RETURN *, $nodes", "CALL"),
    ("BEGIN TRANSACTION RETURN $nodes", "BEGIN"),
    ("COMMIT RETURN $nodes", "COMMIT"),
    ("ROLLBACK RETURN $nodes", "ROLLBACK"),
    ("CHECKPOINT RETURN $nodes", "CHECKPOINT"),
    ("ANALYZE RETURN $nodes", "ANALYZE"),
    ("EXPLAIN " + N + "RETURN n", "EXPLAIN"),
    ("PROFILE " + N + "RETURN n", "PROFILE"),
    ("CREATE NODE TABLE T (id STRING PRIMARY KEY) RETURN $nodes", "CREATE"),
    ("CREATE MACRO m(x) AS x + 1 RETURN $nodes", "CREATE"),
    ("CREATE SEQUENCE s RETURN $nodes", "CREATE"),
    ("ALTER TABLE Entities DROP name RETURN $nodes", "ALTER"),
    ("DROP TABLE Entities RETURN $nodes", "DROP"),
    ("COMMENT ON TABLE Entities IS 'x' RETURN $nodes", "COMMENT"),
    ("RETURN nextval('s'), $nodes", "nextval"),
    ("RETURN NextVal ('s'), $nodes", "NextVal"),
    ("RETURN `nextval`('s'), $nodes", "`nextval`"),
    ("RETURN nextval /* now */ ('s'), $nodes", "nextval"),
    ("RETURN currval('s'), $nodes", "currval"),
    ("RETURN setseed(0.5), $nodes", "setseed"),
    ("RETURN create_embedding('x', 'y', 'z'), $nodes", "create_embedding"),
    ("UNWIND range(1, $most) AS x RETURN x, $nodes", "range"),
    ("RETURN `repeat`('x', $most), $nodes", "`repeat`"),
    ("RETURN lpad('x', $most, 'y'), RPAD('x', $most, 'y'), $nodes", "lpad"),
    (N + "RETURN n; MATCH (m) DELETE m", ";"),
    (N + "RETURN n; " + N + "RETURN n", ";"),
    (N + "RETURN n;;", ";"),
    ("; " + N + "RETURN n", ";"),
    (N + "RETURN n; // done\n; CHECKPOINT", ";"),
    ("RETURN to_json($nodes)", "to_json"),
    ("RETURN 'To_Json($word)', $nodes", "To_Json"),
    ("RETURN $nodes // to_json($word)", "to_json"),
    # Case and spacing.
    (N + "cReAtE (:Entities {id: 'x'}) RETURN n", "cReAtE"),
    (N + "RETURN n.id AS a\nSeT n.name = 'x'", "SeT"),
    ("MATCH(n)WHERE(n.id)IN $nodes CREATE(:Entities{id:'x'})RETURN n", "CREATE"),
    (N + "RETURN 1CREATE (:Entities {id: 'x'})", "CREATE"),
    (N + "RETURN 1.5CREATE (:Entities {id: 'x'})", "CREATE"),
    (N + "RETURN 'a'CREATE (:Entities {id: 'x'})", "CREATE"),
    (N + "RETURN [1..CREATE", "CREATE"),
    (N + "RETURN *CREATE (:Entities {id: 'x'})", "CREATE"),
    # Comments: one that splits a word, and ends that readers disagree on.
    (N + "/* a */CREATE/* b */(:Entities {id: 'x'}) RETURN n", "CREATE"),
    (N + "CRE/**/ATE (:Entities {id: 'x'}) RETURN n", "CRE "),
    (N + "/* /* */ CREATE (:Entities) /* */ RETURN n", "CREATE"),
    (N + "/* **/ RETURN ' */ CREATE (:Entities {id: 1}) // '", "**/"),
    (N + "/***/ RETURN n", "**/"),
    (N + "// hidden\rCREATE (:Entities {id: 'x'}) RETURN n", "U+000D"),
    (N + "RETURN n // \x0bCREATE", "U+000B"),
    (N + "RETURN n /* never ends", "comment"),
    # Strings and names: ends that readers disagree on.
    (N + "RETURN 'a\\' CREATE (:Entities {id: ' '})", "string"),
    (N + "RETURN 'a\\q' + ' CREATE '", "string"),
    (N + "RETURN 'a\\u00' + ' CREATE '", "string"),
    (N + "RETURN 'a''b' + 'never ends", "string"),
    (N + "RETURN `never ends", "name"),
    (N + "RETURN `a`CREATE (:Entities)", "CREATE"),
    (N + 'RETURN "a', "string"),
    # Letters and signs that only look alike, and signs that nobody sees.
    (N + "\u0421REATE (:Entities {id: 'x'}) RETURN n", "U+0421"),
    (N + "\uff23REATE (:Entities {id: 'x'}) RETURN n", "U+FF23"),
    (N + "RETURN n\u037e CREATE (:Entities)", "U+037E"),
    (N + "RETURN n\uff1b CREATE (:Entities)", "U+FF1B"),
    (N + "\u00a0CREATE (:Entities) RETURN n", "U+00A0"),
    (N + "\u2028CREATE (:Entities) RETURN n", "U+2028"),
    (N + "RETURN n /*\x00*/", "U+0000"),
    (N + "RETURN 'a\x00' ", "U+0000"),
    (N + "RETURN n\u200b", "U+200B"),
    (N + "RETURN \u2018CREATE\u2019", "U+2018"),
    (N + "RETURN '\ud800'", "U+D800"),
    (N + "\\u0043REATE (:Entities {id: 'x'}) RETURN n", "\\"),
    # Clauses and statements that no version may know yet.
    (N + "FROBNICATE n RETURN n", "FROBNICATE"),
    (N + "RETURN n INTO x", "INTO"),
    (N + "RETURN n.id AS a GRANT ALL", "GRANT"),
    ("VACUUM RETURN $nodes", "VACUUM"),
    ("(n) RETURN $nodes", "("),
    ("'text' RETURN $nodes", "'text'"),
    # Not reading templates at all.
    ("", "empty"),
    (" \n// nothing\n", "empty"),
    (N.strip(), "RETURN"),
    ("MATCH (n) RETURN n", "$nodes"),
    ("MATCH (n) RETURN n, $node", "$nodes"),
    ("MATCH (n) RETURN n, '$nodes' // $nodes", "$nodes"),
    ("MATCH (n) RETURN n, a$nodes", "$nodes"),
    ("MATCH (n) RETURN n, $ nodes", "$"),
    ("MATCH (n) RETURN n, $`nodes`", "$"),
    ("MATCH (n) RETURN n, $1, $nodes", "$"),
    ("MATCH (n) RETURN n, @nodes", "@"),
    (N + "RETURN " + "1 + " * 6000 + "1", "20,000"),
]


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Any]]:
    """A folder with a database of our own, and a connection that may only read."""
    folder = tmp_path_factory.mktemp("graph")
    with _open(folder / "graph.lbug") as database, _connect(database) as connection:
        _fill(connection)
    (folder / "in.csv").write_text("a\nsecret\n", encoding="utf-8")
    database = _open(folder / "graph.lbug", read_only=True)
    connection = _connect(database)
    yield folder, connection
    connection.close()
    database.close()


@pytest.fixture(scope="module")
def writable(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Any, list[Any]]]:
    """A connection that may write, and what the check's templates must leave as it is."""
    path = tmp_path_factory.mktemp("writable") / "graph.lbug"
    with _open(path) as database:
        with _connect(database) as connection:
            _fill(connection)
            held = contents(connection)
        yield database, held


def _open(path: Path, read_only: bool = False) -> Any:
    return ladybug.Database(str(path), read_only=read_only, buffer_pool_size=64 * 2**20)


def _connect(database: Any) -> Any:
    connection = ladybug.Connection(database, num_threads=1)
    connection.set_query_timeout(2000)
    return connection


def _fill(connection: Any) -> None:
    for statement in (
        "CREATE NODE TABLE Entities(id STRING PRIMARY KEY, name STRING, `set` INT64, load INT64)",
        "CREATE NODE TABLE Chunks(id STRING PRIMARY KEY, content STRING)",
        "CREATE REL TABLE MENTIONED_IN(FROM Entities TO Chunks, weight DOUBLE)",
        "CREATE REL TABLE RELATED_TO(FROM Entities TO Entities, weight DOUBLE)",
        "CREATE SEQUENCE s",
        "CREATE (:Chunks {id: 'c1', content: 'A red kite.'})",
        "CREATE (:Entities {id: 'e1', name: 'kite', `set`: 1, load: 2})",
        "CREATE (:Entities {id: 'e2', name: 'owl', `set`: 1, load: 2})",
        "CREATE (:Entities {id: 'e3', name: 'mouse', `set`: 1, load: 2})",
        "MATCH (a:Entities {id: 'e1'}), (b:Entities {id: 'e2'}) "
        "CREATE (a)-[:RELATED_TO {weight: 0.5}]->(b)",
        "MATCH (a:Entities {id: 'e2'}), (b:Entities {id: 'e3'}) "
        "CREATE (a)-[:RELATED_TO {weight: 0.25}]->(b)",
        "MATCH (a:Entities {id: 'e1'}), (b:Chunks) CREATE (a)-[:MENTIONED_IN {weight: 1.0}]->(b)",
    ):
        connection.execute(statement)
    for value in HOSTILE_VALUES:
        connection.execute("CREATE (:Entities {id: $id, name: $id})", {"id": value})


def files(folder: Path) -> dict[str, bytes]:
    """Everything in a folder, byte for byte."""
    found = sorted(path for path in folder.rglob("*"))
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else b""
        for path in found
    }


def contents(connection: Any) -> list[Any]:
    """Everything that a statement could change in a database."""
    asked = (
        "MATCH (n) RETURN n",
        "MATCH ()-[r]->() RETURN r",
        "CALL show_tables() RETURN *",
        "CALL show_macros() RETURN *",
        "CALL show_sequences() RETURN *",
        "CALL current_setting('threads') RETURN *",
    )
    return [rows(connection, question) for question in asked]


def rows(connection: Any, template: str, **parameters: Any) -> list[list[Any]]:
    result = connection.execute(template, parameters)
    assert not isinstance(result, list), "one template is one statement"
    with result:
        return list(result)


@pytest.mark.parametrize(("template", "expected"), ALLOWED)
def test_reading_templates_are_let_through_and_change_nothing(
    graph: tuple[Path, Any], template: str, expected: list[list[Any]]
) -> None:
    folder, connection = graph
    before = files(folder)
    parameters = {"nodes": ["e1", "e2"], "word": "kite"}
    used = check_cypher(template)
    assert rows(connection, template, **{name: parameters[name] for name in used}) == expected
    assert files(folder) == before


@pytest.mark.parametrize(("template", "named"), REFUSED)
def test_templates_that_do_more_than_read_are_refused(template: str, named: str) -> None:
    with pytest.raises(TemplateError) as caught:
        check_cypher(template)
    assert named in str(caught.value)


def test_the_database_alone_would_not_stop_them(graph: tuple[Path, Any]) -> None:
    _, connection = graph
    read = "LOAD FROM '/etc/passwd' (file_format = 'csv', delim = '|') RETURN *"
    assert rows(connection, read)  # it is open to read only, and reads any file
    hidden = "RETURN 1 /* **/ , 2 /* */"
    assert rows(connection, hidden) == [[1]]  # it reads this as one comment, others as two
    filled = 'RETURN "to_json($word)", $nodes'
    stolen = rows(connection, filled, word='", 42 AS stolen //"', nodes=[])
    assert stolen == [["CAST('", 42]]  # the client writes the value into the query
    for template in (read, hidden + ", $nodes", filled):
        with pytest.raises(TemplateError):
            check_cypher(template)


@pytest.mark.parametrize("value", HOSTILE_VALUES)
def test_a_hostile_value_is_only_a_value(graph: tuple[Path, Any], value: str) -> None:
    folder, connection = graph
    before = files(folder)
    template = (
        "MATCH (n:Entities) WHERE n.id IN $nodes AND n.name = $word "
        "RETURN n.id, n.name, $word, size($nodes), $list"
    )
    assert check_cypher(template) == {"nodes", "word", "list"}
    found = rows(connection, template, nodes=[value], word=value, list=[value, "x"])
    assert found == [[value, value, value, 1, [value, "x"]]]
    assert rows(connection, template, nodes=[value], word="kite", list=["x"]) == []
    assert files(folder) == before


def test_the_fault_is_on_the_line_that_the_message_names() -> None:
    template = "MATCH (n) // one\n/* two\n three */ WHERE n.id IN $nodes\nSET n.x = 1 RETURN n"
    with pytest.raises(TemplateError, match=r"^line 4: SET is refused, as it changes the database"):
        check_cypher(template)
    with pytest.raises(TemplateError) as caught:
        check_cypher("MATCH (n)\r\nRETURN\r\n $nodes, 'x\\q'")
    assert (caught.value.line, caught.value.word) == (3, "'")


def test_what_is_no_text_is_a_type_error() -> None:
    for value in (None, 5, b"RETURN $nodes", ["RETURN $nodes"]):
        for check in (check_cypher, check_aql):
            with pytest.raises(TypeError, match="is text, not"):
                check(value)  # type: ignore[arg-type]


def test_parameters_are_told_without_their_mark() -> None:
    assert check_cypher("UNWIND $nodes AS n RETURN n, $a, $B_2, $a, '$c' // $d") == {
        "nodes",
        "a",
        "B_2",
    }
    assert check_aql("FOR n IN @nodes FOR e IN @@edges RETURN [n, e, @a, '@c'] // @d") == {
        "nodes",
        "@edges",
        "a",
    }


def test_every_statement_that_the_installed_database_knows_is_refused_or_reads(
    graph: tuple[Path, Any],
) -> None:
    _, connection = graph
    with pytest.raises(RuntimeError, match="expecting") as caught:
        connection.execute(";RETURN 1")
    names = re.search(r"expecting \{(.*?)\}", str(caught.value))
    assert names
    known = set(names.group(1).split(", ")) - {"SP"}
    assert len(known) > 20
    for word in known - {"MATCH", "OPTIONAL", "UNWIND", "WITH", "RETURN"}:
        for template in (f"{word} x RETURN $nodes", f"MATCH (n) {word} x RETURN $nodes"):
            with pytest.raises(TemplateError, match=word):
                check_cypher(template)


def test_functions_that_read_only_are_let_through_and_the_others_refused(
    graph: tuple[Path, Any],
) -> None:
    _, connection = graph
    kinds = ("SCALAR FUNCTION", "AGGREGATE FUNCTION", "REWRITE FUNCTION")
    question = "CALL show_functions() WHERE type IN $kinds RETURN DISTINCT upper(name)"
    names = {
        name for (name,) in rows(connection, question, kinds=list(kinds)) if name.isidentifier()
    }
    assert len(names) > 150
    refused = set()
    for name in names:
        try:
            check_cypher(f"RETURN {name}($nodes)")
        except TemplateError:
            refused.add(name)
    acting, growing = {"NEXTVAL", "CURRVAL", "SETSEED"}, {"RANGE", "REPEAT", "LPAD", "RPAD"}
    assert refused == acting | growing
    # No other function that is a value has a name of one that acts.
    acts = re.compile("READ|WRITE|FILE|LOAD|EXPORT|IMPORT|HTTP|EMBED|CACHE|SETTING|NEXT|SEED|EXEC")
    assert {name for name in names - refused if acts.search(name)} == set()


def test_no_function_let_through_makes_a_large_value_out_of_a_number(
    graph: tuple[Path, Any],
) -> None:
    _, connection = graph
    question = "CALL show_functions() WHERE type = 'SCALAR FUNCTION' RETURN name, signature"
    values = {"STRING": "'a'", "INT64": "100000", "LIST": "[1, 2]", "DOUBLE": "1.5"}
    tried, large = 0, set()
    for name, signature in rows(connection, question):
        kinds = re.findall(r"\w+", signature.split("->")[0])
        if not name.isidentifier() or "INT64" not in kinds or set(kinds) - values.keys():
            continue
        arguments = ", ".join(values[kind] for kind in kinds).replace("100000, 1", "1, 1")
        try:
            found = rows(connection, f"RETURN {name}({arguments})")
        except RuntimeError:
            continue  # a number that the function does not take
        tried += 1
        if len(str(found)) > 10_000:
            large.add(name)
    assert tried > 30
    assert large == {"RANGE", "REPEAT", "LPAD", "RPAD"}
    for name in large:
        with pytest.raises(TemplateError, match="of any size out of a number; give a parameter"):
            check_cypher(f"RETURN {name}($nodes, 3)")


def test_aql_may_make_ranges_as_its_server_limits_their_memory() -> None:
    template = (
        "FOR n IN @nodes FOR v IN 1..@depth OUTBOUND n edges RETURN REPEAT(v.name, RANGE(1, 2))"
    )
    assert check_aql(template) == {"nodes", "depth"}


def test_the_keywords_are_those_that_the_installed_database_cannot_read_as_parameters() -> None:
    (library,) = Path(ladybug.__file__).parent.glob("_lbug*.so")
    # The grammar's own words are among the words in capitals that the library holds.
    found = re.findall(rb"(?<![A-Za-z0-9_])[A-Z][A-Z_]{1,39}(?![A-Za-z0-9_])", library.read_bytes())
    candidates = {word.decode() for word in found} | CYPHER_KEYWORDS
    unreadable = set()
    with ladybug.Database(buffer_pool_size=2**26, max_db_size=2**34) as database:
        for word in candidates:
            name = word.lower()
            with ladybug.Connection(database) as connection:
                try:
                    connection.execute(f"RETURN ${name} AS found", {name: 1})
                except RuntimeError:
                    unreadable.add(word)
    assert unreadable == CYPHER_KEYWORDS


WORDS = words(
    "ALTER ANALYZE ATTACH BEGIN CALL CHECKPOINT COMMENT COMMIT COPY CREATE DELETE DETACH DROP "
    "EXPLAIN EXPORT FORCE IMPORT INSTALL LOAD MERGE PROFILE REMOVE ROLLBACK SET UNINSTALL UPDATE "
    "USE"
)


@settings(max_examples=150, deadline=None)
@given(word=st.sampled_from(WORDS), data=st.data())
def test_a_refused_word_is_refused_in_any_case_and_place(word: str, data: st.DataObject) -> None:
    word = "".join(data.draw(st.sampled_from([c.lower(), c])) for c in word)
    pieces = ["MATCH", "(", "n", ")", "WHERE", "n", ".", "id", "IN", "$nodes", "RETURN", "n"]
    places = [at for at in range(len(pieces) + 1) if at == 0 or pieces[at - 1] != "."]
    pieces.insert(data.draw(st.sampled_from(places)), word)
    gap = data.draw(st.sampled_from([" ", "\n", "/**/", "/* ' */", " // '\n", "\t"]))
    with pytest.raises(TemplateError, match=rf"\b{word} is refused"):
        check_cypher(gap.join(pieces))


@settings(max_examples=100, deadline=None)
@given(word=st.sampled_from(WORDS), place=st.integers(0, 6))
def test_a_refused_word_is_let_through_where_it_is_no_keyword(word: str, place: int) -> None:
    shown = [
        f"'{word}'",
        f'"; {word} "',
        f"n.{word}",
        f"`{word}`",
        f"/* {word} */ 1",
        f"n . {word.lower()}",
        f"1 // {word}\n",
    ][place]
    assert check_cypher(f"MATCH (n:{word}) WHERE n.id IN $nodes RETURN {shown}") == {"nodes"}


FRAGMENTS = [
    *words("MATCH OPTIONAL WHERE WITH UNWIND RETURN ORDER BY SKIP LIMIT UNION ALL DISTINCT AS IN"),
    *words("CREATE MERGE SET DELETE COPY LOAD FROM TO CALL EXPORT DATABASE USE CHECKPOINT BEGIN"),
    *words("(n) (n:Entities) -[:RELATED_TO]-> (m) n n.id n.name $nodes $word 1 2.5 'e1' * , . : ;"),
    *words("// /* */ **/ /** ' \" ` \\ \\' { } [ ] | -> .. = <> + - $ @ \r \x0b \u00a0 \u0421"),
    "CREATE (:Entities {id: 'bad'})",
    "SET n.name = 'bad'",
    "DETACH DELETE n",
    "COPY (RETURN 1) TO 'FOLDER/stolen.csv'",
    "EXPORT DATABASE 'FOLDER/stolen'",
    "LOAD FROM 'FOLDER/in.csv' RETURN *",
    "CALL threads = 7",
    "CREATE MACRO bad(x) AS x",
    "nextval('s')",
    "`nextval`('s')",
    "' */ CREATE (:Entities {id: 'bad'}) //",
    "EXISTS { MATCH (n)-[]->() }",
    "COUNT { MATCH (n)-[]->() } > 0",
    "CASE WHEN 1 = 1 THEN 2 END",
    "AS x",
    "AND 1 = 1",
    "\n",
    "ORDER BY n.id",
    "LIMIT 3",
]
PIECES = re.compile(r"'[^']*'|`[^`]*`|\w+|\s+|.", re.DOTALL)


@st.composite
def mutated(draw: st.DrawFn) -> str:
    """A template that is let through, with pieces put in, taken away, doubled or swapped."""
    pieces = PIECES.findall(draw(st.sampled_from(ALLOWED))[0])
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(pieces) - 1))
        way = draw(st.sampled_from(["put in", "put in", "take away", "double", "swap", "replace"]))
        if way == "put in":
            gap = draw(st.sampled_from([" ", " ", " ", ""]))
            pieces[at:at] = [gap, draw(st.sampled_from(FRAGMENTS)), gap]
        elif way == "take away" and len(pieces) > 1:
            del pieces[at]
        elif way == "double":
            pieces[at:at] = [pieces[at], " "]
        elif way == "swap":
            other = draw(st.integers(0, len(pieces) - 1))
            pieces[at], pieces[other] = pieces[other], pieces[at]
        else:
            pieces[at] = draw(st.sampled_from(FRAGMENTS))
    return "".join(pieces)


ADMITTED: list[str] = []


@settings(
    max_examples=600,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(template=mutated())
@example("MATCH (n) WHERE n.id IN $nodes RETURN n /* **/ ; CREATE (:Entities {id: 'bad'}) /* */")
@example("RETURN $nodes, '\\\\' + ' CREATE (:Entities {id: 1})'")
def test_what_the_check_lets_through_never_changes_anything(
    graph: tuple[Path, Any], writable: tuple[Any, list[Any]], template: str
) -> None:
    folder, connection = graph
    database, held = writable
    template = template.replace("FOLDER", str(folder))
    try:
        used = check_cypher(template)
    except TemplateError:
        return
    ADMITTED.append(template)
    given_values = {"nodes": ["e1", "e2"], "word": "kite"}
    before = files(folder)
    parameters = {name: given_values.get(name, 1) for name in used}
    for asked in (connection.database, database):
        # The database may find fault with it; it must not act on it. A connection keeps every
        # statement that it has prepared, so each template gets its own.
        with contextlib.suppress(RuntimeError), _connect(asked) as own:
            assert "secret" not in str(rows(own, template, **parameters))
    assert files(folder) == before
    with _connect(database) as own:
        assert contents(own) == held


def test_the_mutations_were_worth_running() -> None:
    if not ADMITTED:
        pytest.skip("the test before this one did not run")
    assert len(set(ADMITTED)) >= 100


@settings(max_examples=300, deadline=None)
@given(
    st.one_of(
        st.text(),
        st.lists(st.sampled_from(FRAGMENTS), max_size=12).map(" ".join),
        st.lists(st.sampled_from(FRAGMENTS), max_size=12).map("".join),
    )
)
def test_any_text_is_either_let_through_or_refused(text: str) -> None:
    for check in (check_cypher, check_aql):
        with contextlib.suppress(TemplateError):
            assert "nodes" in check(text)


@pytest.mark.parametrize(
    "text", ["/*" * 9_000, "'\\" * 9_000, "`" * 19_999, "(" * 20_000, "/* *" * 4_000, "1." * 9_000]
)
def test_a_long_text_that_is_meant_to_take_long_does_not(text: str) -> None:
    for check in (check_cypher, check_aql):
        with pytest.raises(TemplateError):
            check(text)
    assert len(text) <= MAX_TEMPLATE


AQL_ALLOWED = [
    "FOR n IN @nodes LET e = DOCUMENT(n) RETURN e",
    "FOR n IN @nodes FOR v, e, p IN 1..2 OUTBOUND n @@relations_collection "
    "PRUNE v.stop OPTIONS { order: 'bfs', uniqueVertices: 'global' } RETURN DISTINCT v._key",
    "WITH Entities FOR v IN OUTBOUND SHORTEST_PATH @a TO @b Relations FILTER v IN @nodes RETURN v",
    "FOR p IN K_SHORTEST_PATHS @a TO @b GRAPH 'g' LIMIT 3 FILTER @nodes RETURN p",
    "LET xs = (FOR n IN @nodes SORT n DESC LIMIT 1, @top_k RETURN n) "
    "RETURN { _key: xs, n: LENGTH(xs) }",
    "FOR d IN view SEARCH ANALYZER(d.text IN TOKENS(@q, 'text_en'), 'text_en') "
    "COLLECT k = d.kind WITH COUNT INTO c FILTER k IN @nodes RETURN { k, c }",
    "FOR d IN Sales FILTER d._id IN @nodes WINDOW { preceding: 1, following: 1 } "
    "AGGREGATE s = SUM(d.n) RETURN s",
    "FOR n IN @nodes RETURN n.insert + n.`remove` + 'UPDATE' /* REPLACE */ // UPSERT",
    "FOR n IN @nodes FILTER n.a == 1 && n.b != 2 || n.c =~ 'x' ? true : false RETURN n[* LIMIT 2]",
    'RETURN @nodes[**] /* it\'s */ + "\\"INSERT\\"" + 0x1F + 1.5e-3',
    "LET nodes = @nodes\r\nFOR n IN nodes\r\n  RETURN REGEX_REPLACE(n, 'a', 'b')",
    "FOR n IN @nodes RETURN { _key: n, `_id`: n ? { _rev: 1 } : null, n }",
]

AQL_REFUSED = [
    ("FOR n IN @nodes INSERT { _key: n } INTO Entities RETURN NEW", "INSERT"),
    ("FOR n IN @nodes UPDATE n WITH { x: 1 } IN Entities RETURN NEW", "UPDATE"),
    ("FOR n IN @nodes REPLACE n WITH { x: 1 } IN Entities RETURN NEW", "REPLACE"),
    ("FOR n IN @nodes REMOVE n IN Entities RETURN OLD", "REMOVE"),
    ("FOR n IN @nodes UPSERT { _key: n } INSERT { } UPDATE { } IN Entities RETURN NEW", "UPSERT"),
    ("FOR n IN @nodes rEmOvE n IN Entities RETURN OLD", "rEmOvE"),
    ("FOR n IN @nodes/**/REMOVE/**/n IN Entities RETURN OLD", "REMOVE"),
    ("FOR n IN @nodes RETURN 1REMOVE", "REMOVE"),
    ("FOR n IN @nodes RETURN MY::FUNCTION(n)", "::"),
    ("FOR n IN @nodes RETURN MY :: FUNCTION(n)", "::"),
    ("FOR n IN @nodes RETURN CALL('MY::FUNCTION', n)", "CALL"),
    ("FOR n IN @nodes RETURN apply ('MY::FUNCTION', [n])", "apply"),
    ("FOR n IN @nodes RETURN `CALL`('MY::FUNCTION', n)", "`CALL`"),
    ("FOR n IN @nodes RETURN SLEEP(1000)", "SLEEP"),
    ("FOR n IN @nodes FOR u IN _users RETURN u", "_users"),
    ("FOR n IN @nodes FOR u IN `_users` RETURN u", "_users"),
    ("FOR n IN @nodes FOR u IN (true ? _users : []) RETURN u", "_users"),
    ("FOR n IN @nodes RETURN { a: n ? _users : n }", "_users"),
    ("RETURN @nodes; RETURN 1", ";"),
    ("RETURN @nodes;", ";"),
    ("RETURN @nodes /* **/ , ' */ REMOVE '", "**/"),
    ("RETURN @nodes // \rREMOVE x IN y", "U+000D"),
    ("RETURN `a\\` + @nodes + `b`", "name"),
    ("RETURN ´a´ + @nodes", "name"),
    ("RETURN 'a\\\n' + @nodes", "string"),
    ('RETURN "never ends + @nodes', "string"),
    ("RETURN @nodes /* never ends", "comment"),
    ("\uff32EMOVE @nodes IN x RETURN 1", "U+FF32"),
    ("RETURN @nodes + $nodes", "$"),
    ("RETURN @ nodes", "@"),
    ("RETURN @@nodes", "@nodes"),
    ("RETURN '@nodes' // @nodes", "@nodes"),
    ("FOR n IN @nodes LET x = n", "RETURN"),
    ("EXPLAIN RETURN @nodes", "EXPLAIN"),
    ("", "empty"),
]


@pytest.mark.parametrize("template", AQL_ALLOWED)
def test_reading_aql_is_let_through(template: str) -> None:
    assert "nodes" in check_aql(template)


@pytest.mark.parametrize(("template", "named"), AQL_REFUSED)
def test_aql_that_does_more_than_read_is_refused(template: str, named: str) -> None:
    with pytest.raises(TemplateError) as caught:
        check_aql(template)
    assert named in str(caught.value)


@settings(max_examples=100, deadline=None)
@given(
    word=st.sampled_from(["INSERT", "UPDATE", "REPLACE", "REMOVE", "UPSERT"]),
    template=st.sampled_from(AQL_ALLOWED),
    data=st.data(),
)
def test_a_writing_word_is_refused_anywhere_in_aql(
    word: str, template: str, data: st.DataObject
) -> None:
    word = "".join(data.draw(st.sampled_from([c.lower(), c])) for c in word)
    words = [m for m in re.finditer(r"(?<![.@`'\w\\\"])\b(FOR|LET|RETURN|FILTER)\b", template)]
    at = data.draw(st.sampled_from(words)).start()
    with pytest.raises(TemplateError, match=rf"\b{word} is refused"):
        check_aql(f"{template[:at]}{word} {template[at:]}")


def test_the_sets_are_as_large_as_they_should_be() -> None:
    assert len(REFUSED) + len(AQL_REFUSED) >= 60
    assert len(set(HOSTILE_VALUES)) >= 30
