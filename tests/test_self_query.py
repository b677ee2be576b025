"""A model's query and filter: read, checked, translated, and never wider than what was set."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.documents import Document
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.language_models import FakeListChatModel
from langchain_core.messages import AIMessage
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import RunnableLambda
from langchain_core.structured_query import (
    Comparator,
    Comparison,
    Operation,
    Operator,
    StructuredQuery,
    Visitor,
)
from langchain_core.vectorstores import InMemoryVectorStore
from langchain_tests.integration_tests import RetrieversIntegrationTests

from helpers import TraceRecorder, doc
from retrievers import AttributeInfo, FaissStore, SelfQueryRetriever
from retrievers.documents import filter_function
from retrievers.query_filter import FilterTranslator, PredicateTranslator, checked_filter
from retrievers.query_parser import parse_filter, parse_structured_query

SONGS = [
    doc("Rain on the roof", "rain", genre="jazz", year=1958, tags=["slow", "night"], tenant="a"),
    doc("Rain again", "again", genre="rock", year=1971, tags=["fast"], tenant="a"),
    doc("Blue night", "blue", genre="jazz", year=1962, live=True, tenant="b"),
    doc("Untitled", "none", tenant="a"),
]
ATTRIBUTES = [
    AttributeInfo(name="genre", description="jazz or rock", type="string"),
    AttributeInfo(name="year", description="of release", type="integer"),
    AttributeInfo(name="live", description="before an audience", type="boolean"),
    AttributeInfo(name="tags", description="words", type="string or list[string]"),
    AttributeInfo(name="seen", description="day", type="date"),
    AttributeInfo(name="length", description="minutes", type="float"),
]
EMBEDDINGS = DeterministicFakeEmbedding(size=16)


def in_memory() -> InMemoryVectorStore:
    store = InMemoryVectorStore(EMBEDDINGS)
    store.add_documents(SONGS)
    return store


def faiss() -> FaissStore:
    return FaissStore.from_documents(SONGS, EMBEDDINGS)


def says(reply: Any, store: Any = None, **fields: Any) -> SelfQueryRetriever:
    """A retriever whose model says this to everything."""
    return SelfQueryRetriever.from_llm(
        FakeListChatModel(responses=[reply if isinstance(reply, str) else json.dumps(reply)]),
        store or in_memory(),
        "titles of songs",
        ATTRIBUTES,
        **fields,
    )


def ids(documents: list[Document]) -> set[str | None]:
    return {document.id for document in documents}


class TestStandard(RetrieversIntegrationTests):
    @property
    def retriever_constructor(self) -> type[BaseRetriever]:
        return SelfQueryRetriever

    @property
    def retriever_constructor_params(self) -> dict[str, Any]:
        chain = RunnableLambda(lambda asked: StructuredQuery(query="rain", filter=None))
        return {"vectorstore": in_memory(), "query_constructor": chain}

    @property
    def retriever_query_example(self) -> str:
        return "songs about rain"


def eq(name: str, value: Any) -> Comparison:
    return Comparison(comparator=Comparator.EQ, attribute=name, value=value)


def lt(name: str, value: Any) -> Comparison:
    return Comparison(comparator=Comparator.LT, attribute=name, value=value)


def operation(name: str, *parts: Any) -> Operation:
    return Operation(operator=Operator(name), arguments=list(parts))


JAZZ_BEFORE_1960 = operation("and", eq("genre", "jazz"), lt("year", 1960))


@pytest.mark.parametrize(
    "written",
    [
        'and(eq("genre", "jazz"), lt("year", 1960))',
        "and ( eq('genre','jazz') ,lt(year, 1960) )",
        "AND(EQ(genre, 'jazz'), lt(\"year\", +1960))",
        {"genre": "jazz", "year": {"$lt": 1960}},
        {"$and": [{"genre": {"$eq": "jazz"}}, {"year": {"lt": 1960}}]},
        {"and": [{"genre": "jazz"}, {"and": [{"year": {"$lt": 1960}}]}]},
        {"$AND": [{"genre": "jazz"}, {"Or": [{"year": {"$LT": 1960}}]}]},
        {
            "operator": "and",
            "arguments": [
                {"comparator": "eq", "attribute": "genre", "value": "jazz"},
                {"comparator": "$lt", "attribute": "year", "value": 1960},
            ],
        },
    ],
)
def test_a_filter_is_read_in_every_form_that_models_write(written: Any) -> None:
    assert parse_filter(written) == JAZZ_BEFORE_1960


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ('in("genre", ["jazz", "rock"])', ("in", "genre", ["jazz", "rock"])),
        ({"genre": ["jazz"]}, ("in", "genre", ["jazz"])),
        ("nin(year, [])", ("nin", "year", [])),
        ("gte(seen, 2024-01-31)", ("gte", "seen", "2024-01-31")),
        ("gt(seen, 2024-01-31T10:20:30Z)", ("gt", "seen", "2024-01-31T10:20:30Z")),
        ("ne(length, -1.5e2)", ("ne", "length", -150.0)),
        ("eq(live, True)", ("eq", "live", True)),
        (r'eq("genre", "the \"x\"")', ("eq", "genre", 'the "x"')),
        ('contain("tags", "a, b) (")', ("contain", "tags", "a, b) (")),
        ("and(like('genre', '%azz'))", ("like", "genre", "%azz")),
        ("eq(meta.genre, 'x')", ("eq", "meta.genre", "x")),
    ],
)
def test_values_of_every_kind_are_read(written: Any, expected: tuple[Any, ...]) -> None:
    found = parse_filter(written)
    assert isinstance(found, Comparison)
    assert (found.comparator.value, found.attribute, found.value) == expected
    assert type(found.value) is type(expected[2])


@pytest.mark.parametrize("written", [None, "", " ", "NO_FILTER", "no_filter", "None", {}])
def test_no_filter_is_said_in_many_ways(written: Any) -> None:
    assert parse_filter(written) is None


@pytest.mark.parametrize(
    "written",
    [
        "eq(genre)",
        "eq(genre, 'a', 'b')",
        "eq(genre, 'a'",
        "eq(genre, 'a'))",
        "eq(genre 'a')",
        "eq(genre, eq(year, 1))",
        "eq(,)",
        "and()",
        "not()",
        "and(1, 2)",
        "genre == 'jazz'",
        "jazz",
        "__import__('os').system('true')",
        "exec(genre, 'print(1)')",
        "eq(genre, __import__('os'))",
        "eq(['a'], 1)",
        {"genre": {}},
        {"$or": []},
        {"$where": {"$gt": 1}, "genre": {"$regex": "x"}},
        {"comparator": "eq", "value": 1},
        ["genre", "jazz"],
        7,
        "and(" * 5000,
        "(" * 10,
    ],
    ids=repr,
)
def test_what_is_no_filter_is_a_value_error_and_nothing_is_run(written: Any) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        parse_filter(written)


@given(st.text(alphabet="andortqe(),[]'\"\\ 0129.-xyz", max_size=60))
@settings(max_examples=150, deadline=None)
def test_any_text_is_a_filter_or_a_value_error(text: str) -> None:
    with contextlib.suppress(ValueError):
        assert isinstance(parse_filter(text), Comparison | Operation | None)


LEAVES = st.builds(
    lambda c, a, v: Comparison(comparator=c, attribute=a, value=v),
    st.sampled_from([c for c in Comparator if c not in ("in", "nin", "contain", "like")]),
    st.sampled_from(["genre", "year", "a_b"]),
    st.integers(-9999, 9999) | st.booleans() | st.text("ab\"'\\(),", max_size=4),
)
TREES = st.recursive(
    LEAVES,
    lambda inner: (
        st.builds(
            lambda name, parts: operation(name, *parts),
            st.sampled_from(["and", "or"]),
            st.lists(inner, min_size=2, max_size=3),
        )
        | inner.map(lambda part: operation("not", part))
    ),
    max_leaves=6,
)


def as_text(directive: Any) -> str:
    if isinstance(directive, Comparison):
        value = json.dumps(directive.value)
        return f'{directive.comparator.value}("{directive.attribute}", {value})'
    return f"{directive.operator.value}({', '.join(map(as_text, directive.arguments))})"


def as_json(directive: Any) -> dict[str, Any]:
    if isinstance(directive, Comparison):
        return {directive.attribute: {f"${directive.comparator.value}": directive.value}}
    parts = [as_json(part) for part in directive.arguments]
    name = directive.operator.value
    return {f"${name}": parts[0] if name == "not" else parts}


@given(TREES)
@settings(max_examples=60, deadline=None)
def test_what_is_written_as_text_or_json_is_read_back(directive: Any) -> None:
    assert parse_filter(as_text(directive)) == directive
    assert parse_filter(as_json(directive)) == directive


@given(TREES)
@settings(max_examples=60, deadline=None)
def test_both_translators_let_the_same_documents_through(directive: Any) -> None:
    dictionary = filter_function(directive.accept(FilterTranslator()))
    predicate = directive.accept(PredicateTranslator())
    values: list[Any] = [None, "a", "b", 5, -5, True, 0]
    documents = [
        Document(page_content="", metadata={k: v for k, v in (("genre", g), ("year", y)) if v})
        for g in values
        for y in values
    ]
    assert [dictionary(d) for d in documents] == [predicate(d) for d in documents]


@pytest.mark.parametrize(
    "reply",
    [
        '{"query": "rain", "filter": "eq(\\"genre\\", \\"jazz\\")", "limit": 2}',
        'Sure!\n```json\n{"query": "rain", "filter": {"genre": "jazz"}, "limit": 2}\n```\nBye {}',
        '<think>{"query": "no"}</think> {"filter": {"genre": "jazz"}, "query": "rain", "limit": 2}',
        '{"genre": 1} {"query": "rain", "filter": {"genre": "jazz"}, "limit": 2, "more": []}',
        '{"query": "no"}</think>{"query": "rain", "filter": {"genre": "jazz"}, "limit": 2}',
    ],
)
def test_the_object_is_found_in_what_surrounds_it(reply: str) -> None:
    expected = StructuredQuery(query="rain", filter=eq("genre", "jazz"), limit=2)
    assert parse_structured_query(reply) == expected
    assert parse_structured_query(AIMessage(reply)) == expected


@pytest.mark.parametrize(
    "reply",
    [
        *("", "I cannot.", "{", '{"answer": 1}', "[" * 9999),
        *('{"a":' * 9999, '{"a":[' * 9999, '<think>{"query": "cut off"'),
    ],
)
def test_a_reply_without_the_object_is_a_value_error(reply: str) -> None:
    with pytest.raises(ValueError, match="holds no JSON object"):
        parse_structured_query(reply)


def test_a_key_that_comes_twice_counts_twice() -> None:
    """JSON has no rule for it, and Python drops the first: half of what was asked for."""
    reply = '{"query": "x", "filter": {"year": {"$gt": 1950}, "year": {"$lt": 1960}}}'
    found = parse_structured_query(reply).filter
    assert found == parse_filter("and(gt(year, 1950), lt(year, 1960))")


@pytest.mark.parametrize("limit", [0, -1, True, "3", 2.5, None])
def test_a_limit_that_is_none_is_left_out(limit: Any) -> None:
    reply = json.dumps({"query": "x", "limit": limit})
    assert parse_structured_query(reply).limit is None


@pytest.mark.parametrize(
    ("name", "given_value", "expected"),
    [
        ("year", "1994", 1994),
        ("year", 1999.5, 1999.5),
        ("genre", 7, "7"),
        ("live", "True", True),
        ("length", "2.5", 2.5),
        ("length", 3, 3),
        ("seen", "2024-01-31", "2024-01-31"),
        ("seen", {"date": "2024-01-31", "type": "date"}, "2024-01-31"),
        ("seen", "2024-01-31T10:20:30Z", "2024-01-31T10:20:30Z"),
        ("tags", "slow", "slow"),
    ],
)
def test_a_value_takes_the_type_of_its_attribute(
    name: str, given_value: Any, expected: Any
) -> None:
    checked: Any = checked_filter(eq(name, given_value), ATTRIBUTES)
    assert checked.value == expected
    assert type(checked.value) is type(expected)


@pytest.mark.parametrize(
    ("directive", "message"),
    [
        (eq("tenant", "b"), "There is no attribute 'tenant'"),
        (eq("year", "soon"), "'year' is of the type integer"),
        (eq("year", True), "'year' is of the type integer"),
        (eq("live", 1), "'live' is of the type boolean"),
        (eq("seen", "yesterday"), "'seen' is of the type date"),
        (eq("seen", "2024-02-30"), "'seen' is of the type date"),
        (eq("seen", "2024-01-31 or later"), "'seen' is of the type date"),
        (eq("length", float("nan")), "which is no number"),
        (eq("length", "nan"), "which is no number"),
        (eq("length", "-1e999"), "which is no number"),
        (eq("genre", ["jazz"]), "compared with one value"),
        (eq("genre", None), "compared with one value"),
        (operation("not", eq("year", 1), eq("year", 2)), "not got 2 filters"),
        (operation("or"), "or got 0 filters"),
        (operation("and", eq("year", 1), eq("owner", 2)), "There is no attribute 'owner'"),
    ],
)
async def test_a_wrong_filter_raises_or_is_left_out(
    directive: Any, message: str, caplog: pytest.LogCaptureFixture
) -> None:
    chain = RunnableLambda(lambda asked: StructuredQuery(query="rain", filter=directive))
    retriever = SelfQueryRetriever(
        vectorstore=in_memory(),
        query_constructor=chain,
        metadata_field_info=ATTRIBUTES,
        search_kwargs={"filter": {"tenant": "a"}},
    )
    with pytest.raises(ValueError, match=message) as caught:
        retriever.invoke("q")
    assert "SelfQueryRetriever translated the filter" in caught.value.__notes__[-1]
    with pytest.raises(ValueError, match=message):
        await retriever.ainvoke("q")
    retriever.on_error = "skip"
    with caplog.at_level(logging.WARNING):
        assert ids(retriever.invoke("q")) == {"rain", "again", "none"}
        assert ids(await retriever.ainvoke("q")) == {"rain", "again", "none"}
    assert caplog.text.count("Searching without the model's filter") == 2


async def test_a_model_that_fails_or_babbles_raises_or_the_question_is_searched(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail(asked: Any) -> Any:
        raise TimeoutError("too slow")

    for chain, error in ((fail, TimeoutError), (lambda asked: "Sorry.", ValueError)):
        retriever = SelfQueryRetriever(
            vectorstore=in_memory(), query_constructor=RunnableLambda(chain), k=1
        )
        with pytest.raises(error):
            retriever.invoke("Untitled")
        with pytest.raises(error):
            await retriever.ainvoke("Untitled")
        retriever.on_error = "skip"
        assert ids(retriever.invoke("Untitled")) == ids(await retriever.ainvoke("Untitled"))
        assert ids(retriever.invoke("Untitled")) == {"none"}
    assert "TimeoutError('too slow')" in caplog.text


async def test_a_cancellation_passes_and_is_no_failure_to_skip() -> None:
    started = asyncio.Event()

    async def wait(asked: Any) -> Any:
        started.set()
        await asyncio.Event().wait()

    chain = RunnableLambda(lambda asked: StructuredQuery(query="rain", filter=None), afunc=wait)
    retriever = SelfQueryRetriever(
        vectorstore=in_memory(), query_constructor=chain, on_error="skip"
    )
    task = asyncio.create_task(retriever.ainvoke("q"))
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len(retriever.invoke("q")) == 4


def test_eight_threads_get_the_same_answers() -> None:
    retriever = says({"query": "rain", "filter": "and(eq(genre, 'jazz'), like(genre, 'j%z'))"})
    with ThreadPoolExecutor(8) as executor:
        answers = list(executor.map(retriever.invoke, ["q"] * 40))
    assert [ids(found) for found in answers] == [{"rain", "blue"}] * 40


@pytest.mark.parametrize("store", [in_memory, faiss])
@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        (None, {"rain", "again", "blue", "none"}),
        ({"genre": "jazz"}, {"rain", "blue"}),
        ({"genre": "jazz", "year": {"$lt": 1960}}, {"rain"}),
        ("or(eq(year, 1971), eq(live, true))", {"again", "blue"}),
        ("not(eq(genre, 'jazz'))", {"again", "none"}),
        ("not(gt(year, 1960))", {"rain"}),
        ("in(year, [1958, '1962'])", {"rain", "blue"}),
        ("nin(genre, ['jazz'])", {"again", "none"}),
    ],
)
async def test_only_what_the_filter_lets_through_is_found(
    store: Any, wanted: Any, expected: set[str]
) -> None:
    retriever = says({"query": "rain", "filter": wanted}, store())
    found = retriever.invoke("q")
    assert ids(found) == ids(await retriever.ainvoke("q")) == expected
    assert all("dense_score" in document.metadata for document in found)
    assert json.dumps([document.metadata for document in found])


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ("contain(tags, 'slow')", {"rain"}),
        ("contain(genre, 'oc')", {"again"}),
        ("like(genre, 'J%')", {"rain", "blue"}),
        ("like(genre, 'oc')", {"again"}),
        ("not(like(genre, '%k'))", {"rain", "blue", "none"}),
    ],
)
def test_a_function_also_looks_into_lists_and_texts(wanted: str, expected: set[str]) -> None:
    assert ids(says({"query": "rain", "filter": wanted}).invoke("q")) == expected


@pytest.mark.parametrize(
    ("pattern", "actual", "expected"),
    [
        ("ab%cd", "abcd", True),
        ("ab%bc", "abc", False),
        ("%ab%ab%", "abab", True),
        ("%ab%ab", "aab", False),
        ("a%b%c", "a b b\nc", True),
        ("%1958", 1958, True),
        ("%", "", True),
        ("%", None, False),
        ("none", None, False),
        (".*", "anything", False),
    ],
)
def test_like_is_the_pattern_of_sql(pattern: str, actual: Any, expected: bool) -> None:
    like = Comparison(comparator=Comparator.LIKE, attribute="title", value=pattern)
    holds = like.accept(PredicateTranslator())
    assert holds(doc("", title=actual)) is expected
    assert holds(doc("")) is False


def test_no_question_can_make_like_take_long() -> None:
    """Tried in every way that it could fit, this takes longer than the universe is old."""
    pattern = "%a" * 30 + "%b"
    like = Comparison(comparator=Comparator.LIKE, attribute="title", value=pattern)
    assert not like.accept(PredicateTranslator())(doc("", title="a" * 5000))


@given(st.text("ab%", max_size=6), st.text("ab", max_size=8))
@settings(max_examples=300, deadline=None)
def test_like_finds_what_looking_everywhere_finds(pattern: str, actual: str) -> None:
    def fits(pattern: str, text: str) -> bool:
        if not pattern:
            return not text
        if pattern[0] == "%":
            return any(fits(pattern[1:], text[n:]) for n in range(len(text) + 1))
        return text[:1] == pattern[0] and fits(pattern[1:], text[1:])

    like = Comparison(comparator=Comparator.LIKE, attribute="title", value=pattern)
    expected = fits(pattern if "%" in pattern else f"%{pattern}%", actual)
    assert like.accept(PredicateTranslator())(doc("", title=actual)) is expected


@pytest.mark.parametrize(
    "written",
    [
        "not(gt(year, 1960))",
        "not(or(gt(year, 1960), like(genre, 'folk')))",
        "not(or(contain(tags, 'x'), not(lte(year, 1960))))",
        "and(not(gt(year, 1960)), not(not(not(contain(tags, 'x')))))",
    ],
)
def test_the_opposite_of_a_comparison_needs_a_value_whatever_is_beside_it(written: str) -> None:
    directive: Any = parse_filter(written)
    assert [d.id for d in SONGS if directive.accept(PredicateTranslator())(d)] == ["rain"]


def test_an_attribute_that_is_called_like_an_operator_reaches_no_store() -> None:
    for name in ("$and", "$or", "$where"):
        comparison = eq(name, "x")
        with pytest.raises(ValueError, match=r"\$(and|or|where)|in the place of"):
            comparison.accept(FilterTranslator())


def test_a_dictionary_cannot_and_says_so() -> None:
    with pytest.raises(ValueError, match="'contain' is not allowed"):
        says({"query": "x", "filter": "contain(tags, 'slow')"}, faiss()).invoke("q")


@pytest.mark.parametrize("store", [in_memory, faiss])
async def test_no_question_widens_the_filter_that_was_set(store: Any) -> None:
    for wanted in (
        None,
        "or(eq(genre, 'jazz'), ne(genre, 'jazz'))",
        "not(eq(year, 1))",
        {"genre": "jazz"},
    ):
        fence = {"filter": {"tenant": "a"}}
        retriever = says({"query": "Blue night", "filter": wanted}, store(), search_kwargs=fence)
        fence["filter"]["tenant"] = "b"
        for found in (
            retriever.invoke("q"),
            await retriever.ainvoke("q"),
            retriever.invoke("q", filter={"tenant": "b"}),
            retriever.invoke("q", k=9, filter={"tenant": {"$in": ["a", "b"]}}),
        ):
            assert "blue" not in ids(found)
    assert ids(retriever.invoke("q", filter={"year": {"$lt": 1960}})) == {"rain"}


def test_an_attribute_that_was_not_declared_cannot_be_asked_for() -> None:
    with pytest.raises(ValueError, match="no attribute 'tenant'"):
        says({"query": "x", "filter": {"tenant": "b"}}).invoke("q")


def test_no_operators_are_none_and_not_all() -> None:
    both = "and(eq(genre, 'jazz'), lt(year, 1960))"
    kwargs = {"allowed_operators": [], "allowed_comparators": ["eq"]}
    retriever = says({"query": "x", "filter": both}, chain_kwargs=kwargs)
    with pytest.raises(ValueError, match="operator 'and' is not allowed"):
        retriever.invoke("q")
    retriever.allowed_comparators = []
    retriever.query_constructor = RunnableLambda(
        lambda asked: StructuredQuery(query="x", filter=eq("genre", "jazz"))
    )
    with pytest.raises(ValueError, match="comparator 'eq' is not allowed"):
        retriever.invoke("q")


def test_half_a_letter_in_what_the_model_wrote_is_its_fault_and_not_the_users() -> None:
    retriever = says('{"query": "rain \\ud83d", "filter": null}', on_error="skip", k=1)
    assert ids(retriever.invoke("Untitled")) == {"none"}


async def test_k_limit_and_the_call() -> None:
    reply = {"query": "rain", "filter": None, "limit": 2}
    assert len(says(reply, k=3).invoke("q")) == 3
    assert len(says(reply, search_kwargs={"k": 1}).invoke("q")) == 1
    limited = says(reply, enable_limit=True, k=3)
    assert len(limited.invoke("q")) == len(await limited.ainvoke("q")) == 2
    assert len(limited.invoke("q", k=1)) == len(await limited.ainvoke("q", k=1)) == 1
    assert len(says({**reply, "limit": 10**9}, enable_limit=True).invoke("q")) == 4
    for limit in (0, -2):  # from a chain of one's own, which nothing has checked
        chain = RunnableLambda(lambda a, n=limit: StructuredQuery(query="x", filter=None, limit=n))
        own = SelfQueryRetriever(vectorstore=in_memory(), query_constructor=chain)
        own.enable_limit = True
        assert len(own.invoke("q")) == 4
    assert len(says(reply, search_kwargs={"k": None}, k=1).invoke("q")) == 1
    with pytest.raises(ValueError, match="k must be a whole number"):
        limited.invoke("q", k=0)
    for fields in ({"k": 0}, {"search_kwargs": {"k": 0}}, {"search_kwargs": {"filter": {"$x": 1}}}):
        with pytest.raises(ValueError, match=r"k|\$x"):
            says(reply, **fields)


@pytest.mark.parametrize(
    ("query", "original", "searched"),
    [("rain", False, "rain"), ("rain", True, "Untitled"), (" ", False, "Untitled")],
)
async def test_what_is_searched_for(query: str, original: bool, searched: str) -> None:
    retriever = says({"query": query, "filter": None}, use_original_query=original)
    trace = Queries()
    retriever.invoke("Untitled", {"callbacks": [trace]})
    await retriever.ainvoke("Untitled", {"callbacks": [trace]})
    assert trace.queries == ["Untitled", searched] * 2
    assert [trace.tags[run] for run in trace.parents][1::2] == [["dense"]] * 2
    assert trace.chains[0] == ["query_constructor"]


class Queries(TraceRecorder):
    def __init__(self) -> None:
        super().__init__()
        self.queries: list[str] = []
        self.chains: list[Any] = []

    def on_retriever_start(self, serialized: Any, query: str, **kwargs: Any) -> None:
        self.queries.append(query)
        super().on_retriever_start(serialized, query, **kwargs)

    def on_chain_start(self, *args: Any, tags: Any = None, **kwargs: Any) -> None:
        self.chains.append(tags)


async def test_a_blank_question_asks_neither_model_nor_store() -> None:
    retriever = SelfQueryRetriever(
        vectorstore=in_memory(), query_constructor=RunnableLambda(lambda asked: 1 / 0)
    )
    assert retriever.invoke(" ") == await retriever.ainvoke("") == []
    with pytest.raises(TypeError, match="must be a string"):
        retriever.invoke({"query": "x"})  # type: ignore[arg-type]


class SqlTranslator(Visitor):
    """Of a store that takes its filters by another name."""

    allowed_comparators = (Comparator.EQ,)

    def visit_operation(self, operation: Operation) -> Any:
        return f" {operation.operator.value} ".join(p.accept(self) for p in operation.arguments)

    def visit_comparison(self, comparison: Comparison) -> Any:
        return f"{comparison.attribute} = {comparison.value!r}"

    def visit_structured_query(self, structured_query: StructuredQuery) -> Any:
        assert structured_query.filter is not None
        return structured_query.query, {"expr": structured_query.filter.accept(self)}


class SqlStore(InMemoryVectorStore):
    asked: list[Any]

    def similarity_search(self, query: str, k: int = 4, **kwargs: Any) -> list[Document]:
        self.asked = [query, k, kwargs]
        return SONGS[:k]

    async def asimilarity_search(self, query: str, k: int = 4, **kwargs: Any) -> list[Document]:
        return self.similarity_search(query, k, **kwargs)


async def test_a_translator_of_another_store_names_its_own_arguments() -> None:
    store = SqlStore(EMBEDDINGS)
    reply = {"query": "rain", "filter": "and(eq(genre, 'jazz'), eq(year, 1958))"}
    retriever = says(reply, store, structured_query_translator=SqlTranslator(), k=2)
    expected = ["rain", 2, {"expr": "genre = 'jazz' and year = 1958"}]
    found = retriever.invoke("q")
    assert (ids(found), store.asked) == ({"rain", "again"}, expected)
    found[0].metadata["genre"] = "changed"
    assert SONGS[0].metadata["genre"] == "jazz"
    await retriever.ainvoke("q")
    assert store.asked == expected
    with pytest.raises(ValueError, match="'lt' is not allowed"):
        says(
            {"query": "x", "filter": "lt(year, 1)"},
            store,
            structured_query_translator=SqlTranslator(),
        ).invoke("q")
    retriever.search_kwargs = {"expr": "tenant = 'a'"}
    with pytest.raises(ValueError, match="both give"):
        retriever.invoke("q")
    retriever.on_error = "skip"
    retriever.invoke("q")
    assert store.asked == ["rain", 2, {"expr": "tenant = 'a'"}]


async def test_other_kinds_of_search_are_the_stores_own() -> None:
    reply = {"query": "rain", "filter": {"genre": "jazz"}}
    retriever = says(reply, search_type="mmr", search_kwargs={"k": 1, "fetch_k": 4})
    assert len(retriever.invoke("q")) == len(await retriever.ainvoke("q")) == 1
    assert ids(retriever.invoke("q", k=4)) == {"rain", "blue"}


def test_the_model_is_told_what_there_is() -> None:
    prompts: list[str] = []

    def model(prompt: Any) -> str:
        prompts.append(prompt.to_string())
        return '{"query": "rain", "filter": null}'

    example = ("Jazz about rain", {"query": "pluie d'été", "filter": {"genre": "jazz"}})
    retriever = SelfQueryRetriever.from_llm(
        RunnableLambda(model),
        in_memory(),
        "titles of {odd} songs",
        [{"name": "genre", "description": "jazz or rock", "type": "string"}],
        chain_kwargs={"examples": [example], "allowed_comparators": [Comparator.EQ]},
        enable_limit=True,
    )
    retriever.invoke("What about {rain}?")
    for part in (
        "titles of {odd} songs",
        '{"genre": {"description": "jazz or rock", "type": "string"}}',
        'Question: Jazz about rain\nAnswer: {"query": "pluie d\'été", "filter": {"genre": "jazz"}}',
        "with one of $eq, and",
        '"limit": 3',
        "Question: What about {rain}?",
    ):
        assert part in prompts[0]
    with pytest.raises(ValueError, match=r"\['fix_invalid'\]"):
        says("{}", chain_kwargs={"fix_invalid": True})
