"""`rag migrate` and filters of FAISS, in which a list and a function mean something else here."""

from __future__ import annotations

from pathlib import Path

import pytest
from langchain_community.vectorstores import FAISS
from langchain_core.embeddings import DeterministicFakeEmbedding
from test_migrate_project import put, written

from ragbook.migrate.filters import FUNCTION, LIST, NOT_EQUAL
from ragbook.migrate.run import migrate
from retrievers.faiss_store import FaissStore

IMPORT = "from langchain_community.vectorstores import FAISS\ns = FAISS.from_texts(t, e)\n"


def reasons(folder: Path, code: str) -> list[str]:
    result = migrate(put(folder, {"a.py": IMPORT + code}))
    return [one.why for one in result.findings if one.why]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('{"a": ["x", "y"]}', '{"a": {"$in": ["x", "y"]}}'),
        ('{"a": ["x"], "b": 1}', '{"a": {"$in": ["x"]}, "b": 1}'),
        ('{"$or": [{"a": ["x"]}, {"b": "y"}]}', '{"$or": [{"a": {"$in": ["x"]}}, {"b": "y"}]}'),
    ],
)
@pytest.mark.parametrize(
    "use",
    [
        "f = s.similarity_search('q', k=2, filter={})\n",
        "r = s.as_retriever(search_kwargs={'k': 2, 'filter': {}})\n",
        "f = s.as_retriever().invoke('q', filter={})\n",
        "r = s.as_retriever()\nf = r.invoke('q', filter={})\n",
    ],
)
def test_a_list_in_a_filter_is_written_as_one_of(
    tmp_path: Path, use: str, old: str, new: str
) -> None:
    assert not written(tmp_path, {"a.py": IMPORT + use.replace("{}", old)}).left
    assert (tmp_path / "a.py").read_text().endswith(use.replace("{}", new))


def test_both_stores_find_the_same_then() -> None:
    texts, where = ["one", "two", "three"], [{"a": "x"}, {"a": "y"}, {"a": "z"}]
    model = DeterministicFakeEmbedding(size=8)
    before = FAISS.from_texts(texts, model, where).similarity_search(
        "q", filter={"$or": [{"a": ["x", "z"]}, {"a": "none"}]}
    )
    store = FaissStore.from_texts(texts, model, where)
    after = store.similarity_search(
        "q", filter={"$or": [{"a": {"$in": ["x", "z"]}}, {"a": "none"}]}
    )
    assert {one.page_content for one in before} == {"one", "three"}
    assert {one.page_content for one in after} == {"one", "three"}


@pytest.mark.parametrize(
    "filter",
    ['{"a": "x"}', '{"a": {"$in": ["x"]}}', '{"$and": [{"a": 1}, {"b": {"$nin": [2]}}]}', "None"],
)
def test_other_filters_stay_as_they_are(tmp_path: Path, filter: str) -> None:
    use = f"f = s.similarity_search('q', filter={filter})\n"
    assert not written(tmp_path, {"a.py": IMPORT + use}).left
    assert (tmp_path / "a.py").read_text().endswith(use)


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("s.similarity_search('q', filter=lambda m: m['a'] == 1)\n", FUNCTION),
        (
            "def only(m):\n    return m['a']\ns.as_retriever(search_kwargs={'filter': only})\n",
            FUNCTION,
        ),
        ("only = {'a': ['x']}\ns.similarity_search('q', filter=only)\n", LIST),
        (
            "more = {'k': 2}\nmore['filter'] = {'a': ['x']}\ns.as_retriever(search_kwargs=more)\n",
            LIST,
        ),
        ("more = {'filter': {'a': ['x']}}\ns.as_retriever(search_kwargs=more)\n", LIST),
        ("def f(store):\n    store.similarity_search('q', filter={'a': ['x']})\nf(s)\n", LIST),
        ("s.similarity_search('q', filter={'a': {'$neq': 1}})\n", NOT_EQUAL),
        ("any_of = ['x']\ns.similarity_search('q', filter={'a': any_of})\n", LIST),
        ("def f(a: list[str]):\n    s.similarity_search('q', filter={'a': a})\n", LIST),
        ("def f(q, a):\n    s.similarity_search(q, filter={'a': a})\nf('q', ['x'])\n", LIST),
        ("def f(q, a):\n    s.similarity_search(q, filter={'a': a})\nf('q', a=['x'])\n", LIST),
    ],
)
def test_what_is_not_sure_keeps_the_store(tmp_path: Path, code: str, why: str) -> None:
    assert any(one.endswith(why) for one in reasons(tmp_path, code))


@pytest.mark.parametrize(
    "code",
    [
        "from shop import Chroma\nc = Chroma(x)\nc.similarity_search('q', filter={'a': ['x']})\n",
        "rows = query.all(filter=1)\n",
        "def f(q, a):\n    s.similarity_search(q, filter={'a': a})\nf(['q'], 'x')\n",
        "def f(a: str):\n    s.similarity_search('q', filter={'a': a})\n",
        "def f(a: list[str]):\n    s.similarity_search('q', filter={'a': {'$in': a}})\n",
    ],
)
def test_a_filter_of_another_object_does_not(tmp_path: Path, code: str) -> None:
    assert not reasons(tmp_path, code)
