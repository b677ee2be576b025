"""What `rag migrate` must know of names that moved: to the core, and to the packages of makers."""

from __future__ import annotations

import csv
import importlib
import inspect
import logging
import textwrap
import tomllib
import warnings
from operator import itemgetter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import retired_names
from langchain_core.documents import Document
from langchain_core.embeddings import FakeEmbeddings
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnableLambda, RunnablePassthrough
from test_migrate_project import written
from test_migrate_rewriting import reasons, rewritten

from ragbook.migrate import table
from ragbook.migrate.table import Elsewhere, Move, Retired, makers, names
from retrievers import BM25Retriever, MultiQueryRetriever, RePhraseQueryRetriever

INSTALLED = ("langchain_chroma", "langchain_huggingface", "langchain_ollama")
"""Packages of makers that the tests have.

By hand were compared langchain-openai 1.7.4 and langchain-cohere 0.6.0, with langchain-community
0.3.31 and langchain 0.3.27."""


def the_class(path: str) -> Any:
    module, _, name = path.rpartition(".")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return getattr(importlib.import_module(module), name)


def move_of(old: str) -> Move:
    entry = table.lookup(*old.rpartition(".")[::2])
    assert isinstance(entry, Move)
    return entry


COMPARED = [
    old
    for old, rules in makers().items()
    if not rules.hand
    and move_of(old).new_module in INSTALLED
    and "chat_models.ollama" not in old  # 0.4.2 does not have it any more; 0.3.31 was compared
]


def public(cls: Any) -> set[str]:
    return {name for name in dir(cls) if not name.startswith("_")}


@pytest.mark.parametrize("old", COMPARED)
def test_a_maker_s_class_has_the_methods_of_the_old_one_or_the_table_says_which_are_gone(
    old: str,
) -> None:
    before, move = the_class(old), move_of(old)
    after = the_class(f"{move.new_module}.{move.new_name}")
    assert public(before) - public(after) == set(move.rules.gone)
    for method in sorted(public(before) & public(after)):
        if not inspect.isroutine(getattr(before, method)):
            continue
        taken = list(inspect.signature(getattr(before, method)).parameters)
        takes = list(inspect.signature(getattr(after, method)).parameters)
        places = move.rules.positional.get(method)
        kept = taken[:places] if places is not None else [n for n in taken if n in takes]
        assert kept == takes[: len(kept)] or method in ("encode_image", "from_orm", "lc_id"), method


@pytest.mark.parametrize("old", COMPARED)
def test_a_maker_s_class_takes_the_arguments_that_are_rewritten(old: str) -> None:
    before, move = the_class(old), move_of(old)
    after = the_class(f"{move.new_module}.{move.new_name}")
    fields, new_fields = getattr(before, "model_fields", None), getattr(after, "model_fields", {})
    if fields is None:
        taken = list(inspect.signature(before).parameters)
        takes = list(inspect.signature(after).parameters)
        places = move.rules.positional[""]
        assert set(taken) <= set(takes)
        assert taken[:places] == takes[:places]
        return
    only = set(move.rules.only) or set(fields) - {"client"}
    assert only <= set(fields)
    assert only <= set(new_fields)
    for name in only - set(move.rules.needs):
        if name in ("base_url", "format"):  # see differences; "" is no format, as None
            continue
        old_default = fields[name].get_default(call_default_factory=True)
        assert new_fields[name].get_default(call_default_factory=True) == old_default, name


def test_what_chroma_has_no_more_goes_with_its_statement_which_did_nothing() -> None:
    """langchain_chroma.Chroma has no persist; since Chroma 0.4 it did nothing."""
    new = rewritten("""
        from langchain_community.vectorstores import Chroma

        def build(docs, emb):
            db = Chroma.from_documents(docs, emb, persist_directory="db")
            db.persist()  # save it
            return db

        class Index:
            def __init__(self, emb):
                self.db = Chroma("name", emb, "db")
                if emb:
                    self.db.persist()
    """)
    assert "from langchain_chroma import Chroma" in new.text
    assert "persist()" not in new.text
    assert "# save it" in new.text
    assert "if emb:\n            pass" in new.text
    told = [one.here for one in new.findings if one.old == "persist()"]
    assert told == ["taken out: it writes by itself"] * 2


@pytest.mark.parametrize(
    "use",
    [
        "done = db.persist()",
        "save(db.persist)",
        "db.add_texts([]); db.persist()",
        "if db: db.persist()",
        "def save(store): store.persist()",
        "other.db.persist()",
    ],
)
def test_a_store_is_left_where_persist_does_not_stand_alone_or_is_of_an_unknown_object(
    use: str,
) -> None:
    code = f"from langchain_community.vectorstores import Chroma\ndb = Chroma('n', e)\n{use}\n"
    new = rewritten(code)
    assert new.text == code
    assert "persist" in reasons(new)
    assert "it writes by itself" in reasons(new)


def test_a_store_that_is_left_keeps_its_calls_of_what_did_nothing() -> None:
    code = (
        "from langchain_community.vectorstores import Chroma\n"
        "db = Chroma('n', e)\ndb.persist()\ndone = db.persist()\n"
    )
    assert rewritten(code).text == code


def test_persist_of_an_imported_module_or_object_is_another_one() -> None:
    code = (
        "import disk\nfrom index import storage\n"
        "from langchain_community.vectorstores import Chroma\n"
        "db = Chroma('n', e)\ndisk.persist()\nstorage.context.persist()\n"
    )
    assert rewritten(code).text == code.replace(
        "langchain_community.vectorstores", "langchain_chroma"
    )


def test_a_store_is_left_where_another_file_may_persist_it(tmp_path: Path) -> None:
    build = "from langchain_community.vectorstores import Chroma\ndb = Chroma('n', e)\n"
    written(tmp_path, {"build.py": build, "save.py": "from build import db\ndb.persist()\n"})
    assert (tmp_path / "build.py").read_text() == build


def test_an_argument_by_position_is_left_where_the_maker_has_another_order() -> None:
    """The fourth is client_settings in the old class and host in the new one."""
    line = "from langchain_community.vectorstores import Chroma\n"
    moved = line.replace("langchain_community.vectorstores", "langchain_chroma")
    assert rewritten(f"{line}Chroma('n', e, 'db')\n").text == f"{moved}Chroma('n', e, 'db')\n"
    code = f"{line}Chroma('n', e, 'db', settings)\n"
    new = rewritten(code)
    assert new.text == code
    assert "another order" in reasons(new)


# Models of OpenAI and Ollama


def test_a_model_is_moved_where_both_classes_know_its_arguments() -> None:
    new = rewritten("""
        from langchain.llms import OpenAI
        from langchain_community.llms import Ollama
        from langchain_community.chat_models import ChatOllama

        llm = OpenAI(temperature=0, openai_api_key="x")
        local = Ollama(base_url="http://localhost:11434", model="llama3", temperature=0)
        chat: ChatOllama = ChatOllama(model="llama3", num_ctx=4096)
    """)
    assert "from langchain_openai import OpenAI\n" in new.text
    assert "from langchain_ollama import OllamaLLM as Ollama\n" in new.text
    assert "from langchain_ollama import ChatOllama\n" in new.text
    assert new.packages == {"langchain-openai", "langchain-ollama"}
    assert all(one.rewritten for one in new.findings)


@pytest.mark.parametrize(
    ("use", "why"),
    [
        ("Ollama()", "model is not given"),
        ("Ollama(model='m', system='s')", "no system of the same meaning"),
        ("Ollama(model='m', timeout=3)", "no timeout of the same meaning"),
        ("Ollama(**settings)", "not all given by name"),
        ("build(Ollama)", "passed on"),
        ("class Own(Ollama): ...", "passed on"),
        ("__all__ = ['Ollama']", "other modules have it from here"),
    ],
)
def test_a_model_is_left_where_the_two_classes_differ(use: str, why: str) -> None:
    code = f"from langchain_community.llms import Ollama\n{use}\n"
    new = rewritten(code)
    assert new.text == code
    assert why in reasons(new)


def test_embeddings_of_ollama_are_left_since_their_vectors_differ() -> None:
    code = (
        "from langchain_community.embeddings import OllamaEmbeddings\nOllamaEmbeddings(model='m')\n"
    )
    new = rewritten(code)
    assert new.text == code
    assert "embed the documents anew" in reasons(new)
    old = the_class("langchain_community.embeddings.OllamaEmbeddings")
    assert old.model_fields["embed_instruction"].default == "passage: "
    assert old.model_fields["query_instruction"].default == "query: "


# Names that the newest langchain-community has no more


def test_what_only_earlier_versions_had_is_in_no_row_of_today() -> None:
    earlier = tomllib.loads(retired_names.EARLIER.read_text(encoding="utf-8"))["makers"]
    assert "langchain_community.chat_models.ollama.ChatOllama" in earlier
    today = {
        (module, old.rpartition(".")[2])
        for old, row in retired_names.makers().items()
        for module in row["modules"]  # type: ignore[attr-defined]
    }
    for old, row in earlier.items():
        for module in row["modules"]:
            assert (module, old.rpartition(".")[2]) not in today
            assert (module, old.rpartition(".")[2]) in names()


@pytest.mark.parametrize("name", ["ChatOpenAI", "ChatOllama", "AzureChatOpenAI", "ChatAnthropic"])
def test_a_chat_model_is_looked_up_as_in_earlier_versions(name: str) -> None:
    found = table.lookup("langchain_community.chat_models", name)
    assert isinstance(found, Move)
    assert found.maker
    assert found == table.lookup("langchain.chat_models", name)


def test_a_second_name_of_a_class_is_kept_for_the_maker_s_class() -> None:
    line = "from langchain_community.embeddings import SentenceTransformerEmbeddings\n"
    new = rewritten(f"{line}SentenceTransformerEmbeddings(model_name='m')\n")
    assert new.text.startswith(
        "from langchain_huggingface import HuggingFaceEmbeddings as SentenceTransformerEmbeddings\n"
    )
    old = the_class("langchain_community.embeddings.SentenceTransformerEmbeddings")
    assert old is the_class("langchain_community.embeddings.HuggingFaceEmbeddings")


@pytest.mark.parametrize(
    ("name", "here"),
    [
        ("Pinecone", "langchain_pinecone.PineconeVectorStore"),
        ("Qdrant", "langchain_qdrant.QdrantVectorStore"),
        ("Weaviate", "langchain_weaviate.WeaviateVectorStore"),
        ("Milvus", "langchain_milvus.Milvus"),
        ("MongoDBAtlasVectorSearch", "langchain_mongodb.MongoDBAtlasVectorSearch"),
        ("ElasticsearchStore", "langchain_elasticsearch.ElasticsearchStore"),
        ("PGVector", "langchain_postgres.PGVector"),
        ("Neo4jVector", "langchain_neo4j.Neo4jVector"),
    ],
)
def test_the_maker_s_store_is_named_under_every_old_path(name: str, here: str) -> None:
    for module in ("langchain.vectorstores", "langchain_community.vectorstores"):
        new = rewritten(f"from {module} import {name}\n")
        assert [one.here for one in new.findings] == [here]
        assert here in reasons(new)


def test_the_cache_in_memory_is_the_core_s() -> None:
    for module in ("langchain.cache", "langchain_community.cache"):
        new = rewritten(f"from {module} import InMemoryCache\n")
        assert new.text == "from langchain_core.caches import InMemoryCache\n"


# Keywords that did nothing


ROWS = table.retired()


@pytest.mark.parametrize("row", [r for r in ROWS.values() if r.ignores])
def test_an_old_class_takes_any_keyword_and_forgets_it(row: Retired) -> None:
    cls = the_class(f"{row.modules[-1]}.{row.name}")
    assert cls.model_config.get("extra", "ignore") == "ignore"
    for method in row.ignores:
        if method:
            texts = [Document(page_content="one two")] if "documents" in method else ["one two"]
            build = getattr(cls, method)
            takes = inspect.signature(build).parameters
            more = {"embeddings": FakeEmbeddings(size=2)} if "embeddings" in takes else {}
            assert not hasattr(build(texts, **more, threshold=0.5), "threshold")


@pytest.mark.parametrize(
    "row", [r for r in ROWS.values() if "Retriever" in r.name], ids=lambda r: r.name
)
def test_an_old_retriever_forgets_the_keywords_of_a_search_or_passes_them_on(row: Retired) -> None:
    cls = the_class(f"{row.modules[-1]}.{row.name}")
    assert cls._expects_other_args == row.passes_on


def test_a_keyword_without_a_field_goes_and_is_told() -> None:
    new = rewritten("""
        from langchain_classic.retrievers import EnsembleRetriever
        from langchain_community.retrievers import TFIDFRetriever

        words = TFIDFRetriever.from_documents(docs, preprocess_func=tokens)
        both = EnsembleRetriever(
            retrievers=[words, dense],
            weights=[0.7, 0.3],  # words first
            similarity_threshold=0.5,  # only good ones
        )
    """)
    assert "TFIDFRetriever.from_documents(docs)\n" in new.text
    assert "    weights=[0.7, 0.3],  # words first\n" in new.text
    assert "threshold=" not in new.text
    assert "# only good ones" in new.text
    told = {one.old: one.here for one in new.findings if one.here.startswith("taken out")}
    assert told == {
        "preprocess_func=tokens": "taken out: it did nothing",
        "similarity_threshold=0.5": "taken out: it did nothing",
    }


@pytest.mark.parametrize(
    "call",
    ["EnsembleRetriever(retrievers=r, threshold=pop())", "CrossEncoderReranker(model=m, k=3)"],
)
def test_a_keyword_stays_that_may_do_something_or_was_an_error(call: str) -> None:
    code = (
        "from langchain_classic.retrievers import EnsembleRetriever\n"
        "from langchain_classic.retrievers.document_compressors import CrossEncoderReranker\n"
    )
    new = rewritten(f"{code}{call}\n")
    assert call in new.text
    assert "is not known to take" in reasons(new)


def test_a_keyword_of_a_search_goes_where_the_old_class_forgot_it() -> None:
    new = rewritten("""
        from langchain_classic.retrievers import EnsembleRetriever
        from langchain_community.retrievers import BM25Retriever

        class Search:
            def __init__(self, docs, dense):
                self.words = BM25Retriever.from_documents(docs)
                self.both = EnsembleRetriever(retrievers=[self.words, dense])

            async def search(self, q, k):
                found = self.both.get_relevant_documents(q, k=10, callbacks=[c])
                found += self.words.invoke(q, k=k)
                found += self.both.invoke(input=q, config=c, top_k=3)
                return found + await self.both.aget_relevant_documents(
                    q,
                    k=10,
                )
    """)
    assert 'self.both.invoke(q, config={"callbacks": [c]})' in new.text
    assert "self.words.invoke(q)" in new.text
    assert "self.both.invoke(input=q, config=c)" in new.text
    assert "await self.both.ainvoke(\n            q,\n        )\n" in new.text
    assert [one.old for one in new.findings if one.here.startswith("taken out")] == [
        "k=10",
        "k=k",
        "top_k=3",
        "k=10",
    ]


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("def f(r): return r.get_relevant_documents('q', k=3)", "maybe with such an object"),
        ("both = both or dense\nboth.invoke('q', k=3)", "can be something else"),
        ("both.invoke('q', k=count())", "did nothing"),
        ("both.invoke('q', **more)", "did nothing"),
        ("both.bind(k=count()).invoke('q')", "did nothing"),
        ("functools.partial(both.invoke, k=3)('q')", "maybe with such an object"),
        ("pool.submit(both.get_relevant_documents, 'q', k=3)", "maybe with such an object"),
        ("await asyncio.to_thread(both.invoke, 'q', k=3)", "maybe with such an object"),
    ],
)
def test_a_retriever_is_left_where_a_keyword_of_a_search_cannot_be_judged(
    code: str, why: str
) -> None:
    code = (
        "from langchain_classic.retrievers import EnsembleRetriever\n"
        f"both = EnsembleRetriever(retrievers=[a])\n{code}\n"
    )
    new = rewritten(code)
    assert "import EnsembleRetriever" in new.text
    assert why in reasons(new)


@pytest.mark.parametrize(
    "other",
    [
        "functools.partial(model.invoke, stop=['x'])",
        "model = model.bind(stop=['x'])",
        "pool.submit(both.invoke, 'q', config=config)",
        "Tool(func=both.invoke, name='search')",
    ],
)
def test_keywords_of_models_and_of_what_is_handed_a_search_keep_no_retriever(other: str) -> None:
    new = rewritten(f"""
        from langchain_classic.retrievers import EnsembleRetriever

        both = EnsembleRetriever(retrievers=[a])
        {other}
    """)
    assert "RRFEnsembleRetriever(" in new.text
    assert other in new.text


@pytest.mark.parametrize("given", ["query='q'", "'q', callbacks=[c]"])
def test_an_old_method_that_is_handed_on_with_arguments_of_another_name_is_left(given: str) -> None:
    new = rewritten(f"""
        from langchain_classic.retrievers import EnsembleRetriever

        both = EnsembleRetriever(retrievers=[a])
        pool.submit(both.get_relevant_documents, {given})
        pool.submit(both.get_relevant_documents, 'q')
    """)
    assert f"(both.get_relevant_documents, {given})" in new.text
    assert "(both.invoke, 'q')" in new.text
    assert "called otherwise now" in reasons(new)


@pytest.mark.parametrize("name", ["dense", "dense: VectorStoreRetriever"])
def test_a_store_s_retriever_keeps_the_keywords_of_a_search(name: str) -> None:
    new = rewritten(f"""
        from langchain_classic.retrievers import EnsembleRetriever

        {name} = store.as_retriever()
        both = EnsembleRetriever(retrievers=[dense])
        dense.get_relevant_documents("q", k=3)
    """)
    assert "RRFEnsembleRetriever(" in new.text
    assert 'dense.invoke("q", k=3)' in new.text


def test_a_retriever_is_left_whose_search_passed_a_keyword_on() -> None:
    """The old ContextualCompressionRetriever gave it to its base retriever."""
    code = textwrap.dedent("""
        from langchain_classic.retrievers import ContextualCompressionRetriever
        from langchain_classic.retrievers.document_compressors import CrossEncoderReranker

        reranker = CrossEncoderReranker(model=m)
        small = ContextualCompressionRetriever(base_compressor=reranker, base_retriever=dense)
        small.invoke("q", top_k=10)
    """)
    new = rewritten(code)
    assert "import ContextualCompressionRetriever" in new.text
    assert "went on to the base retriever" in reasons(new)


# Loggers


async def test_what_is_searched_is_logged_under_the_module_s_name(
    caplog: pytest.LogCaptureFixture,
) -> None:
    words = BM25Retriever.from_texts(["seal kit"])
    reworded = RunnableLambda(lambda question: ["seals"])
    many = MultiQueryRetriever(retriever=words, llm=reworded)
    one = RePhraseQueryRetriever(retriever=words, llm_chain=RunnableLambda(lambda q: "seal"))
    caplog.set_level(logging.INFO)
    many.invoke("kit")
    await many.ainvoke("kit")
    one.invoke("Which kit?")
    await one.ainvoke("Which kit?")
    assert caplog.record_tuples == [
        ("retrievers.multi_query", logging.INFO, "Searching for ['kit', 'seals']"),
        ("retrievers.multi_query", logging.INFO, "Searching for ['kit', 'seals']"),
        ("retrievers.rephrase", logging.INFO, "Searching for 'seal'"),
        ("retrievers.rephrase", logging.INFO, "Searching for 'seal'"),
    ]


# Settings


@pytest.mark.parametrize("name", ["debug", "verbose", "llm_cache"])
def test_a_setting_of_langchain_itself_is_left_with_what_sets_it_now(name: str) -> None:
    new = rewritten(f"import langchain\nlangchain.{name} = True\nif langchain.{name}: ...\n")
    assert [(one.line, one.old) for one in new.findings] == [
        (2, f"langchain.{name}"),
        (3, f"langchain.{name}"),
    ]
    assert all(f"set_{name} of langchain_core.globals" in one.why for one in new.findings)


def test_an_attribute_of_that_name_of_something_else_is_no_setting() -> None:
    assert not rewritten(
        "import langchain_core\nclient.debug = True\nx.langchain.debug = 1"
    ).findings


# Advice


def advice(path: str) -> str:
    entry = table.lookup(*path.rpartition(".")[::2])
    assert isinstance(entry, Elsewhere), path
    return entry.advice


def advised(path: str, **given: Any) -> Any:
    """Run the code that the advice on a name says to write."""
    said = advice(path)
    assert said.startswith("write ")
    code = said.removeprefix("write ").partition(";")[0]
    return eval(code, {**CODE, **given})


CODE = {
    "Document": Document,
    "Path": Path,
    "RunnablePassthrough": RunnablePassthrough,
    "StrOutputParser": StrOutputParser,
    "csv": csv,
    "itemgetter": itemgetter,
}


@pytest.mark.parametrize("module", ["vectorstores", "retrievers", "chat_models", "llms"])
def test_both_old_packages_say_the_same_of_a_name(module: str) -> None:
    for package in ("langchain", "langchain_classic", "langchain_community"):
        assert "from its maker's package" in advice(f"{package}.{module}.some_maker.SomeClass")
    assert "str.split" in advice("langchain_community.retrievers.bm25.default_preprocessing_func")
    assert "BaseStore" in advice("langchain.embeddings.CacheBackedEmbeddings")


def test_a_reranker_that_its_maker_has_is_named() -> None:
    found = table.lookup("langchain.retrievers.document_compressors", "CohereRerank")
    assert isinstance(found, Move)
    assert (found.new_module, found.new_name) == ("langchain_cohere", "CohereRerank")
    imported = "from langchain.retrievers.document_compressors import CohereRerank\n"
    new = rewritten(imported + 'r = CohereRerank(model="m", top_n=2)\n')
    assert new.text.startswith("from langchain_cohere import CohereRerank\n")
    assert "model is not given" in reasons(rewritten(imported + "r = CohereRerank(top_n=2)\n"))


def test_the_code_advised_for_loaders_reads_what_they_read(tmp_path: Path) -> None:
    loaders = "langchain_community.document_loaders"
    (tmp_path / "a").mkdir()
    for name in ("one.txt", "a/two.txt"):
        (tmp_path / name).write_text(f"text of {name}\n\nmore")
    file, table_ = tmp_path / "one.txt", tmp_path / "three.csv"
    table_.write_text('name, colour\nkite,red\n"blue heron"," grey, blue"\n')
    text_loader = the_class(f"{loaders}.TextLoader")
    assert advised(f"{loaders}.text.TextLoader", file=file) == text_loader(file).load()
    old = the_class(f"{loaders}.DirectoryLoader")(
        str(tmp_path), glob="**/*.txt", loader_cls=text_loader
    )
    found = advised(f"{loaders}.DirectoryLoader", folder=tmp_path)
    assert sorted(found, key=str) == sorted(old.load(), key=str)
    new = advised(f"{loaders}.CSVLoader", file=table_)
    assert new == the_class(f"{loaders}.CSVLoader")(table_).load()
    assert new[0].page_content == "name: kite\ncolour: red"


def test_the_code_advised_for_other_loaders_is_what_they_do(tmp_path: Path) -> None:
    """pypdf and docx2txt are not installed here; what both give was compared beside them."""

    def reader(file: str) -> Any:
        pages = [SimpleNamespace(extract_text=lambda number=n: f"page {number}\n") for n in (1, 2)]
        return SimpleNamespace(pages=pages)

    loaders = "langchain.document_loaders"
    pages = advised(f"{loaders}.PyPDFLoader", file="f", pypdf=SimpleNamespace(PdfReader=reader))
    assert [(one.page_content, one.metadata["page"]) for one in pages] == [
        ("page 1", 0),
        ("page 2", 1),
    ]
    docx = SimpleNamespace(process=lambda file: f"text of {file}")
    (word,) = advised(f"{loaders}.Docx2txtLoader", file="f.docx", docx2txt=docx)
    assert word == Document(page_content="text of f.docx", metadata={"source": "f.docx"})


def test_the_chains_that_are_advised_answer_as_the_old_ones() -> None:
    prompt = ChatPromptTemplate.from_template("{context} | {input}")
    llm = RunnableLambda(lambda value: value.to_messages()[0].content)
    retriever = BM25Retriever.from_texts(["red kites", "kites and herons", "herons"])
    given = {"prompt": prompt, "llm": llm, "retriever": retriever}
    chains = "langchain.chains"
    answer = advised(f"{chains}.combine_documents.create_stuff_documents_chain", **given)
    documents = [Document(page_content="one"), Document(page_content="two")]
    make = the_class("langchain_classic.chains.combine_documents.create_stuff_documents_chain")
    old = make(llm, prompt)
    given_both = {"context": documents, "input": "why?"}
    assert answer.invoke(given_both) == old.invoke(given_both) == "one\n\ntwo | why?"
    both = advised(f"{chains}.create_retrieval_chain", **given, chain=answer)
    whole = the_class("langchain_classic.chains.create_retrieval_chain")(retriever, old)
    assert both.invoke({"input": "kites"}) == whole.invoke({"input": "kites"})
    question = ChatPromptTemplate.from_template("{context} | {question}")
    asked = advised(f"{chains}.RetrievalQA", **{**given, "prompt": question})
    assert asked.invoke("kites") == "red kites\n\nkites and herons | kites"


# Chains that are given


MANY = "from langchain.retrievers.multi_query import MultiQueryRetriever\n"
LLM = "from langchain.chains import LLMChain\n"


@pytest.mark.parametrize(
    ("code", "why"),
    [
        (
            f"{LLM}MultiQueryRetriever(retriever=b, llm_chain=LLMChain(llm=m))",
            "a dict",
        ),
        (
            f"{LLM}c = LLMChain(llm=m)\nMultiQueryRetriever(retriever=b, llm_chain=c)",
            "a dict",
        ),
        (
            f"{LLM}LLMChain\ndef f(c): MultiQueryRetriever(retriever=b, llm_chain=c)",
            "a dict",
        ),
        (
            "p = PydanticOutputParser(pydantic_object=Lines)\n"
            "MultiQueryRetriever(retriever=b, llm_chain=prompt | m | p)",
            "an object",
        ),
        (
            "r = MultiQueryRetriever.from_llm(retriever=b, llm=m)\nr.generate_queries(q, manager)",
            "second argument is a config",
        ),
    ],
)
def test_multi_query_is_left_where_it_could_not_read_the_chain(code: str, why: str) -> None:
    new = rewritten(f"{MANY}{code}\n")
    assert MANY in new.text
    assert why in reasons(new)


def test_a_chain_of_runnables_is_taken_also_beside_an_old_chain() -> None:
    code = f"{LLM}LLMChain(llm=m)\nc = prompt | m | lines\n"
    new = rewritten(f"{MANY}{code}MultiQueryRetriever(retriever=b, llm_chain=c)\n")
    assert "MultiQueryRetriever(retriever=b, llm=c)" in new.text
