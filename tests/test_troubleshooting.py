"""Every symptom on the page is shown to happen, and its cure to work, in a test of its name."""

from __future__ import annotations

import ast
import asyncio
import functools
import importlib
import importlib.metadata
import importlib.util
import json
import operator
import os
import re
import shutil
import socket
import sqlite3
import subprocess
import sys
import threading
import tomllib
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import lancedb
import numpy as np
import ollama
import pyarrow as pa
import pytest
from arango_server import ArangoServer
from langchain_chroma import Chroma
from langchain_core.cross_encoders import BaseCrossEncoder
from langchain_core.documents import Document
from langchain_core.embeddings import DeterministicFakeEmbedding, Embeddings
from langchain_core.language_models import FakeListChatModel
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import RunnableLambda
from langchain_core.stores import InMemoryStore
from langchain_core.vectorstores import InMemoryVectorStore
from langchain_ollama import ChatOllama
from langchain_text_splitters import RecursiveCharacterTextSplitter
from ollama_server import OllamaServer, serve
from pydantic import PrivateAttr
from rank_bm25 import BM25Okapi
from rich.console import Console
from sqlalchemy import create_engine
from sqlalchemy.pool import StaticPool
from typer import BadParameter

from helpers import ListRetriever, doc, texts
from ragbook.chains import CONTEXT_WINDOW, NO_ANSWER, answer_chain, estimate_tokens, format_context
from ragbook.copying import copy_retrievers
from ragbook.corpus import CorpusError, load_documents
from ragbook.extractive import ExtractiveChatModel
from ragbook.profiles import (
    BGE_QUERY_PROMPT,
    OLLAMA_MODEL,
    MissingPartError,
    _load_embeddings,
    get_profile,
)
from ragbook.servers import SearchServer
from ragbook.tools_cli import bind_params
from ragbook.vectorstore import build_vectorstore, clean_metadata
from retriever_tools import (
    GraphWriter,
    LadybugStore,
    TemplateError,
    ToolError,
    check_cypher,
    parse_tool,
)
from retriever_tools.arango_store import ArangoStore
from retriever_tools.result import ToolResult
from retriever_tools.retriever import ToolRetriever
from retriever_tools.store import StoreError as ToolStoreError
from retriever_tools.tool import RetrieverTool, SearchMode
from retriever_tools.tool_choice import StructuredOutputError, choose_tools_by_model
from retrievers import (
    AdaptiveFusionRetriever,
    BM25Retriever,
    CachedRetriever,
    DenseRetriever,
    EchoRetriever,
    FaissStore,
    FallbackRetriever,
    HttpApiRetriever,
    LanceRetriever,
    LLMExtractor,
    LLMFilter,
    MultiQueryRetriever,
    ParentDocumentRetriever,
    PermissionFilteredRetriever,
    RerankRetriever,
    RRFEnsembleRetriever,
    ScoreFusionRetriever,
    SqlRetriever,
    ThresholdRetriever,
    parent_document,
)
from retrievers.cached import CacheInfo
from retrievers.documents import latest_score
from retrievers.faiss_store import StoreError
from retrievers.lance_table import update_indexes
from retrievers.multi_query import parse_queries
from retrievers.sql import SqlError
from scale.shards import ShardTable
from scale.sources import IngestError, find_corpus

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from langchain_classic.retrievers import EnsembleRetriever, MergerRetriever
    from langchain_classic.retrievers import MultiQueryRetriever as OldMultiQueryRetriever
    from langchain_classic.retrievers import ParentDocumentRetriever as OldParentDocumentRetriever
    from langchain_classic.retrievers.document_compressors import LLMChainExtractor, LLMChainFilter
    from langchain_community.retrievers import BM25Retriever as OldBM25Retriever

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "book" / "troubleshooting.md"


def slug(heading: str) -> str:
    return re.sub(r"[^a-z0-9]+", "_", heading.lower()).strip("_")


def test_every_heading_has_its_test_and_every_test_its_heading() -> None:
    headings = re.findall(r"^### (.+)$", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    tests = [name.removeprefix("test_") for name in globals() if name.startswith("test_")]
    assert [slug(heading) for heading in headings] == [
        name for name in tests if not name.startswith("every_heading_has")
    ]


def test_every_heading_has_a_symptom_a_cause_and_a_cure() -> None:
    entries = re.split(r"^### ", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    for entry in entries:
        assert entry.count("**Cause.**") == entry.count("**Cure.**") == 1, entry[:60]


@pytest.fixture(autouse=True)
def one_setting_for_chroma(monkeypatch: pytest.MonkeyPatch) -> None:
    # Chroma refuses two instances in memory with different settings.
    monkeypatch.setenv("ANONYMIZED_TELEMETRY", "False")


class WordVectors(Embeddings):
    """A vector with one place for each of the given words: how often a text holds it."""

    def __init__(self, *words: str) -> None:
        self.words = words

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return [self.embed_query(text) for text in texts]

    def embed_query(self, text: str) -> list[float]:
        return [text.lower().count(word) + 0.01 for word in self.words]


class OverlapScorer(BaseCrossEncoder):
    """Stands for a cross-encoder: the share of the question's words that the text holds."""

    def score(self, text_pairs: list[tuple[str, str]]) -> list[float]:
        def words(text: str) -> set[str]:
            return set(re.findall(r"\w+", text.lower()))

        return [len(words(q) & words(t)) / len(words(q)) for q, t in text_pairs]


BIRDS = [
    doc("The red kite circles above open fields.", "birds#1"),
    doc("The blue heron stands still in shallow water.", "birds#2"),
    doc("The grey owl hunts at night.", "birds#3"),
]


# Installing and importing


def test_no_module_named_langchain_retrievers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "langchain").mkdir()
    (tmp_path / "langchain" / "__init__.py").touch()  # 1.x is here, and has no such modules
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "langchain", raising=False)
    page = PAGE.read_text(encoding="utf-8")
    gone = re.findall(r"^ModuleNotFoundError: No module named '(langchain\.\w+)'$", page, re.M)
    assert "langchain.retrievers" in gone
    for module in gone:
        with pytest.raises(ModuleNotFoundError, match=f"^No module named '{module}'$"):
            importlib.import_module(module)
        assert importlib.util.find_spec(module.replace("langchain", "langchain_classic"))
    old = importlib.import_module("langchain_classic.retrievers")
    ours = importlib.import_module("retrievers")
    assert hasattr(old, "MultiQueryRetriever")
    assert hasattr(ours, "MultiQueryRetriever")


def test_no_module_named_langchain_community(monkeypatch: pytest.MonkeyPatch) -> None:
    needed = importlib.metadata.requires("langchain-classic") or []
    assert not [one for one in needed if "community" in one and "extra ==" not in one]
    import langchain_classic.retrievers as old

    for name in [name for name in sys.modules if name.startswith("langchain_community")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "langchain_community", None)
    with pytest.raises(ModuleNotFoundError, match=r"Module langchain_community\.\w+ not found"):
        _ = old.BM25Retriever
    assert issubclass(BM25Retriever, BaseRetriever)  # ours does without


def test_object_has_no_attribute_get_relevant_documents() -> None:
    retriever = InMemoryVectorStore(DeterministicFakeEmbedding(size=4)).as_retriever()
    for name in ("get_relevant_documents", "aget_relevant_documents"):
        with pytest.raises(AttributeError, match=f"'VectorStoreRetriever' object.* '{name}'"):
            getattr(retriever, name)
    assert retriever.invoke("kites") == asyncio.run(retriever.ainvoke("kites")) == []


def test_could_not_import_rank_bm25(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "rank_bm25", None)
    with pytest.raises(ImportError, match="Could not import rank_bm25, please install with"):
        OldBM25Retriever.from_texts(["red kite"])
    report = copy_retrievers(["bm25"], tmp_path)
    assert any(package.startswith("rank-bm25") for package in report.packages)


def test_langchain_community_is_being_sunset() -> None:
    import langchain_community

    with pytest.warns(DeprecationWarning, match="is being sunset"):
        importlib.reload(langchain_community)
    for file in (ROOT / "source-code").rglob("*.py"):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        imported = {
            module
            for node in ast.walk(tree)
            for module in (
                [alias.name for alias in node.names]
                if isinstance(node, ast.Import)
                else [node.module or ""]
                if isinstance(node, ast.ImportFrom)
                else []
            )
        }
        assert not [
            m for m in imported if m.startswith(("langchain_community", "langchain_classic"))
        ]


def test_attempted_relative_import_with_no_known_parent_package(tmp_path: Path) -> None:
    package = tmp_path / "app"
    copy_retrievers(["ensemble"], package)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}

    def python(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *arguments],
            env=environment,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
        )

    assert (
        "attempted relative import with no known parent package"
        in python(str(package / "ensemble.py")).stderr
    )
    run = python("-c", "from app.ensemble import RRFEnsembleRetriever")
    assert run.returncode == 0, run.stderr


def test_the_installation_downloads_gigabytes_for_cuda() -> None:
    lock = tomllib.loads((ROOT / "uv.lock").read_text(encoding="utf-8"))
    (torch,) = [package for package in lock["package"] if package["name"] == "torch"]
    for_cards = [
        needed
        for needed in torch["dependencies"]
        if needed["name"].startswith(("nvidia-", "cuda-"))
    ]
    assert for_cards
    assert all("linux" in needed["marker"] for needed in for_cards)
    if shutil.which("uv") is not None:
        help_text = subprocess.run(
            ["uv", "pip", "install", "--help"], capture_output=True, text=True, timeout=60
        ).stdout
        assert "--torch-backend" in help_text


FORK = """
import os, signal, sys, time
from tokenizers import Tokenizer, models, pre_tokenizers
tokenizer = Tokenizer(models.WordLevel({"kite": 0, "?": 1}, unk_token="?"))
tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
texts = ["kite kite"] * 5000
tokenizer.encode_batch(texts)
child = os.fork()
if not child:
    tokenizer.encode_batch(texts)
    os._exit(0)
if os.environ.get("TOKENIZERS_PARALLELISM") != "true":
    os.waitpid(child, 0)
    print("finished")
else:
    time.sleep(0.3)
    if os.waitpid(child, os.WNOHANG) == (0, 0):
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        print("hangs")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="needs fork")
def test_huggingface_tokenizers_the_current_process_just_got_forked() -> None:
    def outcome(**variables: str) -> str:
        environment = {k: v for k, v in os.environ.items() if k != "TOKENIZERS_PARALLELISM"}
        run = subprocess.run(
            [sys.executable, "-c", FORK],
            env={**environment, **variables},
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert run.returncode == 0, run.stderr
        return run.stdout.strip()

    # What older versions warn of; the installed one turns its threads off without a word.
    assert outcome(TOKENIZERS_PARALLELISM="true") == "hangs"
    assert outcome(TOKENIZERS_PARALLELISM="false") == "finished"
    assert outcome() == "finished"


def test_chroma_sends_telemetry(monkeypatch: pytest.MonkeyPatch) -> None:
    from chromadb.config import Settings

    monkeypatch.delenv("ANONYMIZED_TELEMETRY", raising=False)
    assert Settings().anonymized_telemetry is True
    monkeypatch.setenv("ANONYMIZED_TELEMETRY", "False")
    assert Settings().anonymized_telemetry is False

    monkeypatch.delenv("ANONYMIZED_TELEMETRY")
    build_vectorstore(BIRDS, WordVectors("kite", "heron"), "fake")
    assert os.environ["ANONYMIZED_TELEMETRY"] == "False"


# Files and stores


def test_utf_8_codec_can_t_decode_byte(tmp_path: Path) -> None:
    file = tmp_path / "menu.txt"
    file.write_bytes("Crème brûlée".encode("cp1252"))
    with pytest.raises(UnicodeDecodeError, match="'utf-8' codec can't decode byte"):
        file.read_text(encoding="utf-8")
    with pytest.raises(CorpusError, match=r"menu\.txt is not UTF-8.*iconv -f WINDOWS-1252"):
        load_documents(tmp_path)
    file.write_text(file.read_text(encoding="cp1252"), encoding="utf-8")
    assert texts(load_documents(tmp_path)) == ["Crème brûlée"]


def test_every_passage_is_found_twice() -> None:
    model = WordVectors("kite", "heron", "owl")
    plain = [doc(document.page_content) for document in BIRDS]
    try:
        for _ in range(2):  # a cell that runs again
            doubled = Chroma.from_documents(plain, model, collection_name="birds")
        found = texts(doubled.similarity_search("kite", k=2))
        assert found == [BIRDS[0].page_content] * 2
    finally:
        doubled.delete_collection()

    for _ in range(2):
        store = build_vectorstore(plain, model, "fake")
    assert len(store.get()["ids"]) == 3
    assert len(set(texts(store.similarity_search("kite", k=2)))) == 2


def test_collection_expecting_embedding_with_dimension_of(tmp_path: Path) -> None:
    two, three = WordVectors("kite", "heron"), WordVectors("kite", "heron", "owl")
    old = Chroma.from_documents(BIRDS, two, persist_directory=str(tmp_path / "old"))
    old._embedding_function = three
    with pytest.raises(Exception, match="expecting embedding with dimension of 2, got 3"):
        old.similarity_search("kite")

    folder = tmp_path / "ours"
    build_vectorstore(BIRDS, two, "model-a", persist_directory=folder)
    with pytest.raises(ValueError, match=r"'model-a' \(2 dimensions\).*'model-b' \(3 dimensions\)"):
        build_vectorstore(BIRDS, three, "model-b", persist_directory=folder)
    again = build_vectorstore(
        BIRDS, three, "model-b", persist_directory=folder, collection_name="with-model-b"
    )
    assert texts(again.similarity_search("owl", k=1)) == [BIRDS[2].page_content]


def test_after_a_change_of_the_model_the_results_make_no_sense(tmp_path: Path) -> None:
    one, other = WordVectors("kite", "heron"), WordVectors("heron", "kite")
    old = Chroma.from_documents(BIRDS[:2], one, persist_directory=str(tmp_path / "old"))
    old._embedding_function = other  # as many dimensions, so there is no error
    assert "heron" in old.similarity_search("kite", k=1)[0].page_content

    folder = tmp_path / "ours"
    build_vectorstore(BIRDS, one, "model-a", persist_directory=folder)
    with pytest.raises(ValueError, match="embedded by 'model-a'"):
        build_vectorstore(BIRDS, other, "model-b", persist_directory=folder)


def test_expected_metadata_value_to_be_a_str_int_float_bool() -> None:
    awkward = [doc("red kite", "a", author=None, size={"wing": 1.8}, tags=["bird", "red"])]
    model = WordVectors("kite")
    with pytest.raises(ValueError, match="Expected metadata value to be a str, int, float, bool"):
        Chroma.from_documents(awkward, model, collection_name="awkward")

    cleaned, changes = clean_metadata(awkward[0].metadata)
    assert cleaned == {"size": '{"wing": 1.8}', "tags": ["bird", "red"]}
    assert changes == ["author: None left out", "size: dict stored as JSON text"]
    with pytest.warns(UserWarning, match="author: None left out"):
        store = build_vectorstore(awkward, model, "fake")
    assert store.similarity_search("kite")[0].metadata == cleaned


# Keyword search


def test_keyword_search_misses_a_word_that_is_there() -> None:
    sentences = ["Rest matters.", "Nobody likes exercise.", "Food matters.", "Sleep matters."]
    old = OldBM25Retriever.from_texts(sentences, k=1)
    assert texts(old.invoke("exercises")) != ["Nobody likes exercise."]
    assert texts(old.invoke("exercise")) != ["Nobody likes exercise."]

    ours = BM25Retriever.from_texts(sentences, k=1)
    for query in ("exercise", "Exercises", "EXERCISE!"):
        assert texts(ours.invoke(query)) == ["Nobody likes exercise."]


def test_keyword_search_returns_passages_that_do_not_hold_the_word() -> None:
    old = OldBM25Retriever.from_documents(BIRDS, k=2)
    assert len(old.invoke("zeppelin")) == 2
    assert BM25Retriever.from_documents(BIRDS, k=2).invoke("zeppelin") == []


def test_a_blank_question_finds_passages() -> None:
    old = OldBM25Retriever.from_documents(BIRDS, k=2)
    assert len(old.invoke("   ")) == 2

    store = InMemoryVectorStore.from_documents(BIRDS, WordVectors("kite", "heron"))
    assert len(store.as_retriever().invoke("   ")) == 3
    keywords = BM25Retriever.from_documents(BIRDS)
    dense = DenseRetriever(vectorstore=store)
    hybrid = AdaptiveFusionRetriever(retrievers=[dense, keywords])
    for retriever in (keywords, dense, hybrid):
        assert retriever.invoke("   ") == []


def test_on_four_documents_a_word_counts_nothing() -> None:
    four = ["tea green", "tea black", "juice", "water"]
    okapi = BM25Okapi([text.split() for text in four])
    assert okapi.idf["tea"] == 0  # two of four: ln(2.5 / 2.5)
    assert list(okapi.get_scores(["tea"])) == [0, 0, 0, 0]
    two = OldBM25Retriever.from_texts(["red kite", "blue heron"], k=1)
    assert texts(two.invoke("kite")) == ["blue heron"]

    ours = BM25Retriever.from_texts(four)
    assert texts(ours.invoke("tea")) == ["tea green", "tea black"]
    assert all(d.metadata["bm25_score"] > 0 for d in ours.invoke("tea"))
    assert texts(BM25Retriever.from_texts(["red kite", "blue heron"]).invoke("kite")) == [
        "red kite"
    ]


def test_building_prefix_dict_from_the_default_dictionary(tmp_path: Path) -> None:
    plain = "import jieba; jieba.lcut('打印机')"
    ours = "from ragbook.chinese import jieba_words; print(jieba_words('打印机'))"
    shown = {}
    for name, code in {"plain": plain, "ours": ours}.items():
        (tmp_path / name).mkdir()
        run = subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "TMPDIR": str(tmp_path / name), "RAG_CACHE": str(tmp_path / "own")},
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert run.returncode == 0, run.stderr
        shown[name] = run.stderr
    assert "Building prefix dict from the default dictionary" in shown["plain"]
    assert [path.name for path in (tmp_path / "plain").iterdir()] == ["jieba.cache"]
    assert shown["ours"] == ""
    assert list((tmp_path / "ours").iterdir()) == []
    assert (tmp_path / "own" / "jieba.cache").exists()


# Vector search and reranking


class RecordingModel:
    """Stands for SentenceTransformer, and remembers what it was to write before which text."""

    prompts: dict[str, Any] = {}  # noqa: RUF012

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.asked: list[tuple[str, str | None]] = []

    def encode(self, texts: Any, prompt: str | None = None, **kwargs: Any) -> Any:
        listed = [texts] if isinstance(texts, str) else list(texts)
        self.asked += [(text, prompt) for text in listed]
        return np.ones((len(listed), 2)) if not isinstance(texts, str) else np.ones(2)

    encode_query = encode_document = encode


def test_the_embedding_model_finds_less_than_it_should(monkeypatch: pytest.MonkeyPatch) -> None:
    from langchain_huggingface import HuggingFaceEmbeddings

    monkeypatch.setattr("sentence_transformers.SentenceTransformer", RecordingModel)

    def asked(embeddings: Any) -> list[tuple[str, str | None]]:
        embeddings._client.asked.clear()
        embeddings.embed_documents(["a passage"])
        embeddings.embed_query("a question")
        return list(embeddings._client.asked)

    plain = HuggingFaceEmbeddings(model_name="bge")
    assert asked(plain) == [("a passage", None), ("a question", None)]
    wrong = HuggingFaceEmbeddings(model_name="bge", encode_kwargs={"prompt": BGE_QUERY_PROMPT})
    assert asked(wrong)[0] == ("a passage", BGE_QUERY_PROMPT)

    right = _load_embeddings.__wrapped__("bge", BGE_QUERY_PROMPT)
    assert asked(right) == [("a passage", None), ("a question", BGE_QUERY_PROMPT)]


class Directions(Embeddings):
    """Embeds "north" and the like as arrows of length 1."""

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return [self.embed_query(text) for text in texts]

    def embed_query(self, text: str) -> list[float]:
        return {"north": [0.0, 1.0], "north-east": [0.8, 0.6], "south": [0.0, -1.0]}[text]


def test_in_another_language_all_scores_are_high() -> None:
    embeddings: Any = get_profile("embedded").embeddings()
    pairs = {
        "Chinese": ("打印机卡纸怎么办？", "公司的股票代码是多少？"),
        "English": ("How do I clear a paper jam?", "What is the company's stock symbol?"),
    }
    cosines = {}
    for language, texts_of_two in pairs.items():
        one, other = np.array(embeddings.embed_documents(list(texts_of_two)))
        cosines[language] = one @ other / np.linalg.norm(one) / np.linalg.norm(other)
    assert cosines["Chinese"] > 0.4  # nothing to do with each other
    assert cosines["English"] < 0.1
    tokens = embeddings._client.tokenizer.tokenize("打印机卡纸")
    assert tokens.count("[UNK]") >= 3


def test_relevance_scores_must_be_between_0_and_1() -> None:
    store = Chroma.from_texts(["north-east", "south"], Directions(), collection_name="arrows")
    search: Any = {"score_threshold": 0.3}  # the cosine of the north-east is 0.6
    old = store.as_retriever(search_type="similarity_score_threshold", search_kwargs=search)
    with pytest.warns(UserWarning, match="Relevance scores must be between 0 and 1"):
        found = old.invoke("north")
    # The squared distance 0.8 is taken for a plain one: 1 - 0.8 / sqrt(2) = 0.43, and not 0.6.
    assert texts(found) == ["north-east"]
    search["score_threshold"] = 0.5
    old = store.as_retriever(search_type="similarity_score_threshold", search_kwargs=search)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert old.invoke("north") == []

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        (near,) = ThresholdRetriever(vectorstore=store, score_threshold=0.5).invoke("north")
    assert near.metadata["dense_score"] == pytest.approx(0.6)


def test_a_filter_leaves_fewer_passages_than_there_are() -> None:
    passages = [doc(f"kite number {n}", f"p{n}") for n in range(20)]
    visible = {"p18", "p19"}
    bm25 = BM25Retriever.from_documents(passages)
    assert [d for d in bm25.invoke("kite") if d.id in visible] == []

    filtered = PermissionFilteredRetriever(base_retriever=bm25, visible_ids=visible)
    assert [d.id for d in filtered.invoke("kite")] == ["p18", "p19"]
    by_filter = bm25.invoke("kite", filter=lambda document: document.id in visible)
    assert [d.id for d in by_filter] == ["p18", "p19"]


def test_reranking_does_not_bring_the_right_passage() -> None:
    # The first stage counts "kite"; only the judge sees that one passage answers the question.
    passages = [doc(f"kite kite kite number {n}", f"p{n}") for n in range(9)]
    passages.append(doc("What does a kite eat? Mice.", "right"))
    store = InMemoryVectorStore.from_documents(passages, WordVectors("kite", "number"))
    dense = DenseRetriever(vectorstore=store, k=4)
    narrow = RerankRetriever(base_retriever=dense, cross_encoder=OverlapScorer(), top_n=1)
    question = "What does a kite eat number"
    assert narrow.invoke(question)[0].id != "right"

    wide = DenseRetriever(vectorstore=store, k=10)
    reranked = RerankRetriever(base_retriever=wide, cross_encoder=OverlapScorer(), top_n=1)
    assert reranked.invoke(question)[0].id == "right"


# Fusion


def test_of_a_file_only_one_passage_comes_back() -> None:
    pages = [doc(f"kite, part {n}", None, source="birds.md", start_index=n) for n in range(3)]
    lists = [ListRetriever(documents=pages), ListRetriever(documents=pages[::-1])]
    merged = EnsembleRetriever(retrievers=lists, id_key="source")
    assert len(merged.invoke("kite")) == 1
    assert len(RRFEnsembleRetriever(retrievers=lists).invoke("kite")) == 3


def test_a_source_is_lost_when_two_passages_have_the_same_text() -> None:
    ours = doc("All rights reserved.", "a", source="a.md")
    theirs = doc("All rights reserved.", "b", source="b.md")
    lists = [ListRetriever(documents=[ours]), ListRetriever(documents=[theirs])]
    assert len(EnsembleRetriever(retrievers=lists).invoke("rights")) == 1
    found = RRFEnsembleRetriever(retrievers=lists).invoke("rights")
    assert [document.metadata["source"] for document in found] == ["a.md", "b.md"]


def test_the_hybrid_result_holds_only_what_one_search_found() -> None:
    a, b, c, both = (doc(name, name) for name in ("a", "b", "c", "both"))
    dense = ListRetriever(documents=[a, b, both])
    keywords = ListRetriever(documents=[both, c])
    joined = dense.invoke("q") + keywords.invoke("q")
    assert texts(joined[:3]) == ["a", "b", "both"]
    merged = MergerRetriever(retrievers=[dense, keywords]).invoke("q")
    assert texts(merged).count("both") == 2

    fused = RRFEnsembleRetriever(retrievers=[dense, keywords], top_n=3).invoke("q")
    assert texts(fused)[0] == "both"
    assert set(texts(fused)) > {"both", "a"}


def test_hybrid_search_is_no_better_than_one_search_alone() -> None:
    # Keyword search that works, beside vectors that know nothing of the subject.
    right = [doc(f"turbine seal {n}: replace the seal", f"right{n}") for n in range(5)]
    other = [doc(f"note {n} about lunch", f"other{n}") for n in range(45)]
    keywords = [
        Document(
            id=d.id,
            page_content=d.page_content,
            metadata={"bm25_score": 50.0 - n, "bm25_match": (50 - n) / 60},
        )
        for n, d in enumerate(right + other)
    ]
    # In what they put first there is nothing right, and their scores are all about as high.
    vectors = [
        Document(id=d.id, page_content=d.page_content, metadata={"dense_score": 0.4 - 0.001 * n})
        for n, d in enumerate(other[22:] + right + other[:22])
    ]
    sides = [ListRetriever(documents=vectors), ListRetriever(documents=keywords)]

    def right_in_top_5(retriever: Any) -> int:
        found = retriever.invoke("Which turbine seal do I replace?", top_n=5)
        return sum(str(document.id).startswith("right") for document in found)

    by_rank = right_in_top_5(RRFEnsembleRetriever(retrievers=sides))
    by_trust = right_in_top_5(AdaptiveFusionRetriever(retrievers=sides))
    assert by_rank < 5
    assert by_trust == 5


def test_scores_of_two_searches_are_compared() -> None:
    store = InMemoryVectorStore.from_documents(BIRDS, WordVectors("kite", "heron", "owl"))
    dense = DenseRetriever(vectorstore=store)
    keywords = BM25Retriever.from_texts(
        [*(f"The field {n} is wide." for n in range(50)), "The wide ocean holds no kite at all."]
    )
    question = "kite"
    by_score = sorted(
        dense.invoke(question) + keywords.invoke(question), key=lambda d: -(latest_score(d) or 0)
    )
    assert by_score[0].metadata["retrieved_by"] == ["bm25"]
    assert latest_score(by_score[0]) > 1  # type: ignore[operator]  # no cosine is

    fused = ScoreFusionRetriever(retrievers=[dense, keywords], weights=[0.6, 0.4], top_n=1)
    (best,) = fused.invoke(question)
    assert best.id == "birds#1"
    ranked = RRFEnsembleRetriever(retrievers=[dense, keywords]).invoke(question)
    assert max(d.metadata["rrf_score"] for d in ranked) <= 2 / 61


def test_a_score_of_an_earlier_question_is_still_there() -> None:
    shared = [doc("red kite", "a")]
    old = OldBM25Retriever.from_documents(shared, k=1)
    old.invoke("kite")[0].metadata["score"] = 9
    assert old.invoke("heron")[0].metadata == {"score": 9}

    ours = BM25Retriever.from_documents(BIRDS)
    ours.invoke("kite")[0].metadata["score"] = 9
    assert "score" not in ours.invoke("kite")[0].metadata


# Chains and answers


def test_dict_object_has_no_attribute_split() -> None:
    old = OldBM25Retriever.from_documents(BIRDS)
    with pytest.raises(AttributeError, match="'dict' object has no attribute 'split'"):
        old.invoke({"question": "kite"})  # type: ignore[arg-type]

    ours = BM25Retriever.from_documents(BIRDS)
    with pytest.raises(TypeError, match=r"got dict.*itemgetter\('question'\) \| retriever"):
        ours.invoke({"question": "kite"})  # type: ignore[arg-type]
    chain = operator.itemgetter("question") | ours  # type: ignore[operator]
    assert texts(chain.invoke({"question": "kite"})) == [BIRDS[0].page_content]


async def test_asyncio_run_cannot_be_called_from_a_running_event_loop() -> None:
    retriever = BM25Retriever.from_documents(BIRDS)
    pending = retriever.ainvoke("kite")
    with pytest.raises(RuntimeError, match="cannot be called from a running event loop"):
        asyncio.run(pending)
    pending.close()
    assert texts(await retriever.ainvoke("kite")) == [BIRDS[0].page_content]


REPLY = "Here are 2 versions:\n\n1. otter diet\n2. otter prey"


def test_the_model_s_introduction_is_searched_like_a_question() -> None:
    old = OldMultiQueryRetriever.from_llm(
        retriever=ListRetriever(documents=BIRDS), llm=FakeListChatModel(responses=[REPLY])
    )
    from langchain_core.callbacks import CallbackManagerForRetrieverRun

    silent = CallbackManagerForRetrieverRun.get_noop_manager()
    assert old.generate_queries("What do otters eat?", silent) == [
        "Here are 2 versions:",
        "1. otter diet",
        "2. otter prey",
    ]
    assert parse_queries(REPLY) == ["otter diet", "otter prey"]
    ours = MultiQueryRetriever(
        retriever=ListRetriever(documents=BIRDS), llm=FakeListChatModel(responses=[REPLY])
    )
    assert ours.generate_queries("What do otters eat?") == [
        "What do otters eat?",
        "otter diet",
        "otter prey",
    ]


def test_a_small_model_answers_worse_with_more_context(
    caplog: pytest.LogCaptureFixture,
) -> None:
    many = [
        doc(f"Passage {n}. " + "Some words about something else. " * 30, f"p{n}") for n in range(50)
    ]
    everything = "\n\n".join(texts(many))
    assert estimate_tokens(everything) > CONTEXT_WINDOW

    three = RerankRetriever(
        base_retriever=ListRetriever(documents=many), cross_encoder=OverlapScorer(), top_n=3
    )
    assert format_context(three.invoke("passage 7")).count("Passage") == 3
    bounded = format_context(many, max_tokens=1000)
    assert estimate_tokens(bounded) <= 1000
    assert "documents went into the context" in caplog.text


def quoting(scorer: BaseCrossEncoder) -> ExtractiveChatModel:
    return ExtractiveChatModel(
        make_scorer=lambda texts: scorer, threshold=0.3, paraphrase_threshold=0.3
    )


def test_the_context_does_not_contain_the_answer() -> None:
    passages = [doc("A kite is red. Is a kite a bird? A kite is.", "a"), doc("Mice.", "b")]
    passages.append(doc("A kite eats mice.", "c"))
    store = InMemoryVectorStore.from_documents(passages, WordVectors("kite"))
    question = "What eats mice?"

    def answer(k: int, asked: str = question) -> str:
        dense = DenseRetriever(vectorstore=store, k=k)
        return answer_chain(dense, quoting(OverlapScorer())).invoke(asked)

    assert answer(k=1) == NO_ANSWER
    assert "A kite eats mice. [c]" in answer(k=3)
    assert answer(k=3, asked="How heavy was the anvil?") == NO_ANSWER


# Ollama


@pytest.fixture
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)


@contextmanager
def thinking_server() -> Iterator[str]:
    """Speak for a model that thinks until its answer is full, unless it is told not to."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            thinks = body.get("think") is not False
            message = {"role": "assistant", "content": "" if thinks else "Mice."}
            if thinks:
                message["thinking"] = "The user asks what kites eat. Let me see ..."
            reason = "length" if thinks else "stop"
            end = {"model": body["model"], "created_at": "2026-01-01T00:00:00Z", "done": True}
            self.send_response(200)
            self.end_headers()
            answer = {**end, "message": message, "done_reason": reason, "eval_count": 1}
            self.wfile.write(json.dumps(answer).encode() + b"\n")

        def log_message(self, format: str, *args: Any) -> None:
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield f"http://127.0.0.1:{http.server_address[1]}"
    finally:
        http.shutdown()
        thread.join()
        http.server_close()


def test_ambiguous_response_both_yes_and_no_in_received() -> None:
    documents = [doc("Owls hunt mice.", "a")]
    chats = FakeListChatModel(responses=["YES or NO? It depends."])
    with pytest.raises(ValueError, match=r"Ambiguous response\. Both YES and NO in received"):
        LLMChainFilter.from_llm(chats).compress_documents(documents, "owls?")
    says_neither = FakeListChatModel(responses=["It depends."])
    with pytest.raises(ValueError, match="include either YES or NO"):
        LLMChainFilter.from_llm(says_neither).compress_documents(documents, "owls?")

    for model in (chats, says_neither):
        (kept,) = LLMFilter(llm=model).compress_documents(documents, "owls?")
        assert kept.id == "a"


def test_a_compressed_passage_says_what_the_document_does_not() -> None:
    documents = [doc("Owls hunt mice. They nest in trees.", "a", source="owls.txt")]
    inventive = FakeListChatModel(responses=["Sure! Owls hunt mice. They also hunt bears."])
    (old,) = LLMChainExtractor.from_llm(inventive).compress_documents(documents, "owls?")
    assert "bears" in old.page_content
    assert old.metadata["source"] == "owls.txt"

    (new,) = LLMExtractor(llm=inventive).compress_documents(documents, "owls?")
    assert new.page_content == "Owls hunt mice."


def test_the_docstore_has_no_document_for_parent_id() -> None:
    pieces = InMemoryVectorStore(DeterministicFakeEmbedding(size=4))
    splitter = RecursiveCharacterTextSplitter(chunk_size=20, chunk_overlap=0)
    settings: dict[str, Any] = {"vectorstore": pieces, "child_splitter": splitter}
    documents = [doc("Owls hunt mice at night.", "manual")]
    OldParentDocumentRetriever(docstore=InMemoryStore(), **settings).add_documents(documents)
    after_restart = OldParentDocumentRetriever(docstore=InMemoryStore(), **settings)
    assert after_restart.invoke("owls?") == []

    pieces.delete(list(pieces.store))
    parent_document.add_documents(documents, docstore=InMemoryStore(), **settings)
    search, empty = DenseRetriever(vectorstore=pieces, k=9), InMemoryStore()
    after_restart = ParentDocumentRetriever(base_retriever=search, docstore=empty)
    with pytest.raises(
        LookupError, match=r"The docstore has no document for parent_id \['manual'\]"
    ):
        after_restart.invoke("owls?")
    after_restart.on_missing = "child"
    assert {d.metadata["parent_id"] for d in after_restart.invoke("owls?")} == {"manual"}

    count = len(pieces.store)
    parent_document.add_documents(documents, docstore=empty, **settings)
    assert len(pieces.store) == count
    assert texts(after_restart.invoke("owls?")) == texts(documents)


@pytest.mark.usefixtures("no_proxy")
def test_the_answer_is_empty() -> None:
    with thinking_server() as url:
        # There is no such parameter; it is taken without a word.
        wrong = ChatOllama(model=OLLAMA_MODEL, base_url=url, thinking=False)  # type: ignore[call-arg]
        assert wrong.invoke("What do kites eat?").content == ""
        right = ChatOllama(model=OLLAMA_MODEL, base_url=url, reasoning=False)
        assert right.invoke("What do kites eat?").content == "Mice."


@pytest.mark.usefixtures("no_proxy")
def test_connection_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    with pytest.raises((httpx.ConnectError, ConnectionError)):
        ChatOllama(model=OLLAMA_MODEL, base_url=f"http://{address}").invoke("Hello")

    monkeypatch.setenv("OLLAMA_HOST", address)
    with pytest.raises(MissingPartError, match=r"No Ollama server answers at .* Run: ollama serve"):
        get_profile("ollama").chat_model()
    with serve(OllamaServer(models=[OLLAMA_MODEL], tokens=["Hello."])) as server:
        monkeypatch.setenv("OLLAMA_HOST", server.url)
        assert get_profile("ollama").chat_model().invoke("Hello").content == "Hello."


@pytest.mark.usefixtures("no_proxy")
def test_model_not_found_try_pulling_it_first(monkeypatch: pytest.MonkeyPatch) -> None:
    with serve(OllamaServer(status=404)) as server, pytest.raises(ollama.ResponseError):
        ChatOllama(model="qwen3.5", base_url=server.url).invoke("Hello")

    with serve(OllamaServer(models=["llama3:8b"], tokens=["Hello."])) as server:
        monkeypatch.setenv("OLLAMA_HOST", server.url)
        with pytest.raises(MissingPartError, match=f"Run: ollama pull {OLLAMA_MODEL}"):
            get_profile("ollama").chat_model()
        server.models = [OLLAMA_MODEL]
        assert get_profile("ollama").chat_model().invoke("Hello").content == "Hello."


@pytest.mark.usefixtures("no_proxy")
def test_the_model_does_not_know_what_stood_at_the_end_of_a_long_context(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with serve(OllamaServer(models=[OLLAMA_MODEL], tokens=["Hello."])) as server:
        monkeypatch.setenv("OLLAMA_HOST", server.url)
        ChatOllama(model=OLLAMA_MODEL, base_url=server.url).invoke("word " * 20_000)
        get_profile("ollama").chat_model().invoke("Hello")
        default, ours = server.chats()
    assert "num_ctx" not in default["options"]
    assert ours["options"]["num_ctx"] == CONTEXT_WINDOW


def test_a_part_of_the_profile_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    from ragbook.doctor import examine

    monkeypatch.setenv("RAG_GGUF", "no/such/model.gguf")
    with pytest.raises(MissingPartError, match=r"no/such/model\.gguf.*Run: export RAG_GGUF="):
        get_profile("llamacpp").chat_model()
    report = examine("llamacpp")
    assert not report.ok
    assert report.fixes("llamacpp") == ["export RAG_GGUF=/path/to/model.gguf"]
    console = Console(record=True, width=100, file=open(os.devnull, "w"))  # noqa: SIM115
    console.print(report.profile_table("llamacpp"))
    assert "lacks a part" in console.export_text()


def test_status_200_but_no_json() -> None:
    with SearchServer(BIRDS) as service, service.faulty(html=True):
        response = httpx.get(f"{service.url}/search", params={"q": "kite"})
        assert response.status_code == 200
        with pytest.raises(ValueError, match=r"Expecting value: line 1 column 1"):
            response.json()

        search = HttpApiRetriever(base_url=service.url)
        with pytest.raises(RuntimeError, match=r"status 200, but no JSON .*'text/html'"):
            search.invoke("kite")
        service.heal()
        assert texts(search.invoke("kite")) == ["The red kite circles above open fields."]


def test_the_time_limit_of_a_request_does_not_end_it() -> None:
    with SearchServer(BIRDS) as service, service.faulty(slow_body=0.014):
        # Twenty parts, each within the limit, are more than the limit together.
        response = httpx.get(f"{service.url}/search", params={"q": "kite"}, timeout=0.2)
        assert response.json()["results"]

        search = HttpApiRetriever(base_url=service.url, deadline=0.2, read_timeout=0.2)
        with pytest.raises(RuntimeError, match="no whole answer within the deadline"):
            search.invoke("kite")


def test_a_service_that_is_down_slows_every_question() -> None:
    local = BM25Retriever.from_documents(BIRDS)
    with SearchServer(BIRDS) as service, service.faulty(slow_first_byte=60):
        search = HttpApiRetriever(base_url=service.url, attempts=1, read_timeout=0.2)
        for _ in range(3):
            with pytest.raises(RuntimeError, match="nothing was sent"):
                search.invoke("kite")
        assert service.counters.requests == 3

        service.forget()
        retriever = FallbackRetriever(retrievers=[search, local], failure_threshold=1)
        for _ in range(3):
            assert len(retriever.invoke("kite")) == 1
        assert service.counters.requests == 1


# Caching


def tenants_plans() -> dict[str, BaseRetriever]:
    store = InMemoryVectorStore(DeterministicFakeEmbedding(size=4))
    store.add_documents([doc(f"The plan of {name}.", tenant=name) for name in ("acme", "bell")])
    return {
        name: DenseRetriever(vectorstore=store, filter={"tenant": name})
        for name in ("acme", "bell")
    }


def test_check_the_names_of_table_and_columns_and_make_the_index_once(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "desk.db") as desk:
        desk.execute("CREATE TABLE tickets (id TEXT PRIMARY KEY, text TEXT)")
        desk.execute("INSERT INTO tickets VALUES ('t1', 'The export stops.')")
    retriever = SqlRetriever(database=f"sqlite:///{tmp_path / 'desk.db'}", table="tickets")
    with pytest.raises(SqlError, match=r"no such table: tickets_fts.* make the index once"):
        retriever.invoke("export")
    retriever.create_index()
    assert texts(retriever.invoke("export")) == ["The export stops."]


def test_a_sqlite_database_in_memory_is_another_empty_one_in_each_thread() -> None:
    with pytest.raises(ValueError, match="in memory is another, empty one in each thread"):
        SqlRetriever(database="sqlite://", table="tickets")
    one: Any = {"poolclass": StaticPool, "connect_args": {"check_same_thread": False}}
    engine = create_engine("sqlite://", **one)
    assert SqlRetriever(database=engine, table="tickets").database is engine


def test_vectors_of_two_models_do_not_compare(tmp_path: Path) -> None:
    model = DeterministicFakeEmbedding(size=8)
    FaissStore.from_texts(["kite"], model, model_name="minilm").save_local(tmp_path)
    with pytest.raises(StoreError, match="made with the model 'minilm', and this is 'bge-small'"):
        FaissStore.load_local(tmp_path, model, model_name="bge-small")
    assert len(FaissStore.load_local(tmp_path, model, model_name="minilm")) == 1


def test_got_an_unexpected_keyword_argument_ids(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from langchain_community.vectorstores import LanceDB

    birds, model = (
        [doc("red kite", "a"), doc("blue heron", "b")],
        DeterministicFakeEmbedding(size=8),
    )
    with pytest.raises(TypeError, match="unexpected keyword argument 'ids'"):
        LanceDB.from_documents(birds, model, uri=str(tmp_path), table_name="old")

    ours = LanceRetriever.from_documents(birds, model, tmp_path, "new")
    assert ours.invoke("kite", k=1)[0].id == "a"
    assert LanceDB(embedding=model, uri=str(tmp_path)).add_documents(birds) == ["a", "b"]


def test_new_rows_of_a_lancedb_table_are_not_found(tmp_path: Path) -> None:
    model = DeterministicFakeEmbedding(size=8)
    LanceRetriever.from_documents([doc("red kite")], model, tmp_path)
    table = lancedb.connect(tmp_path).open_table("documents")
    opened = LanceRetriever.open(tmp_path, "documents", mode="fts")
    assert table.count_rows() == len(opened.invoke("kite")) == 1
    writer = LanceRetriever.open(tmp_path, "documents", model)
    writer.add_documents([doc("black kite")])

    assert table.count_rows() == 1
    assert len(opened.invoke("kite")) == 2
    table.checkout_latest()
    assert table.count_rows() == 2
    fresh = lancedb.connect(tmp_path, read_consistency_interval=timedelta(0))
    table = fresh.open_table("documents")
    writer.add_documents([doc("white kite")])
    assert table.count_rows() == 3


@pytest.mark.filterwarnings("ignore:optimize")
def test_a_lancedb_folder_is_many_times_as_large_as_its_rows(tmp_path: Path) -> None:
    def size() -> int:
        return sum(file.stat().st_size for file in tmp_path.rglob("*") if file.is_file())

    model = DeterministicFakeEmbedding(size=64)
    birds = [doc(f"kite {number}", f"b{number}") for number in range(100)]
    writer = LanceRetriever.from_documents(birds, model, tmp_path)
    once = size()
    for _ in range(8):
        writer.add_documents(birds)  # the same rows again
    assert size() > 4 * once

    update_indexes(writer.table)  # keeps what is younger than seven days
    assert size() > 4 * once
    update_indexes(writer.table, keep=timedelta(0))
    assert size() < 2 * once
    assert writer.table.count_rows() == 100


def test_the_table_was_begun_otherwise_a_file_changed(tmp_path: Path) -> None:
    part = tmp_path / "corpus" / "part.jsonl"
    part.parent.mkdir()
    part.write_text('{"text": "red kite"}\n', encoding="utf-8")
    copy = Path(shutil.copytree(part.parent, tmp_path / "copy")) / part.name  # with its date
    settings = {"model": "m", "filter_columns": {}}

    def begin(folder: Path) -> ShardTable:
        table = ShardTable(str(tmp_path / "db"), "documents", "corpus")
        table.begin(settings, find_corpus(folder))
        return table

    vectors = pa.FixedSizeListArray.from_arrays(pa.array([1.0, 0.0], pa.float32()), 2)
    shard = "corpus/0.0/more/1"
    row = {"id": ["1"], "text": ["red kite"], "vector": vectors, "metadata": ["{}"]}
    begin(part.parent).write(shard, pa.table({**row, "shard": [shard]}))
    os.utime(copy, (0, 0))
    with pytest.raises(IngestError, match=r"was begun otherwise: 1 file changed: 'part\.jsonl'\. "):
        begin(copy.parent)
    shutil.copystat(part, copy)
    begin(copy.parent)


def test_no_arangodb_answers_at() -> None:
    with ArangoServer() as server:
        store = ArangoStore(server.url)
        server.stop()
        with pytest.raises(ToolStoreError, match=r"No ArangoDB answers at http://.*docker run"):
            store.has_collection("Birds")
        with server:
            assert not store.has_collection("Birds")
            server.faults.status = 503
            with pytest.raises(ToolStoreError, match=r"is not ready \(HTTP 503\)"):
                store.has_collection("Birds")
            server.heal()
            with pytest.raises(ToolStoreError, match="did not accept user"):
                ArangoStore(server.url, password="wrong").has_collection("Birds")


def test_one_user_gets_another_user_s_documents_from_the_cache() -> None:
    plans, user = tenants_plans(), "acme"

    @functools.cache
    def naive(question: str) -> list[str]:
        return texts(plans[user].invoke(question))

    assert naive("plan") == ["The plan of acme."]
    user = "bell"
    assert naive("plan") == ["The plan of acme."]

    first = CachedRetriever(retriever=plans["acme"])
    second = first.model_copy(update={"retriever": plans["bell"]})  # shares what is kept
    assert texts(first.invoke("plan")) == ["The plan of acme."]
    assert texts(second.invoke("plan")) == ["The plan of bell."]


def test_the_cache_never_has_a_hit() -> None:
    class CountsInTheOpen(ListRetriever):
        calls: int = 0

        def _get_relevant_documents(self, query: str, *, run_manager: Any) -> list[Document]:
            self.calls += 1
            return self.documents

    class CountsInPrivate(ListRetriever):
        _calls: int = PrivateAttr(default=0)

        def _get_relevant_documents(self, query: str, *, run_manager: Any) -> list[Document]:
            self._calls += 1
            return self.documents

    def asked_three_times(retriever: BaseRetriever) -> CacheInfo:
        cached = CachedRetriever(retriever=retriever)
        for _ in range(3):
            cached.invoke("kite")
        return cached.info()

    assert asked_three_times(CountsInTheOpen(documents=BIRDS)).bypassed == 3
    assert asked_three_times(CountsInPrivate(documents=BIRDS)).hits == 2

    dense = CachedRetriever(retriever=tenants_plans()["acme"])
    dense.invoke("plan", filter=lambda document: True)
    assert dense.info().bypassed == 1
    dense.invoke("plan", filter={"tenant": "acme"})
    dense.invoke("plan", filter={"tenant": "acme"})
    assert dense.info().hits == 1


def test_a_redis_is_shared_and_the_retriever_does_not_tell_who_may_see_what() -> None:
    pytest.importorskip("redis")
    options: Any = {"redis_url": "redis://127.0.0.1:1/0", "namespace": "plans-1"}
    dense = tenants_plans()["acme"]
    with pytest.raises(ValueError, match=r"A Redis is shared, and retriever\.vectorstore"):
        CachedRetriever(retriever=dense, **options)
    CachedRetriever(retriever=dense, visible_to=["plans", "acme"], **options)


def test_redis_cannot_be_reached_searching_without_a_cache(
    caplog: pytest.LogCaptureFixture,
) -> None:
    pytest.importorskip("redis")
    cached = CachedRetriever(
        retriever=tenants_plans()["acme"],
        redis_url="redis://127.0.0.1:1/0",  # nothing listens on port 1
        namespace="plans-1",
        visible_to="acme",
    )
    for _ in range(3):
        assert texts(cached.invoke("plan")) == ["The plan of acme."]
    assert caplog.text.count("Redis cannot be reached (ConnectionError): searching without") == 1


def test_is_not_a_valid_tool_document() -> None:
    document: dict[str, Any] = {
        "tool_id": "kites",
        "tool_type": "custom_retriever",
        "description": "Birds of prey.",
        "config": {"collection": "Birds", "search_modes": [{"type": "lexical"}], "topk": 5},
    }
    with pytest.raises(ToolError) as caught:
        parse_tool(document, "kites.json")
    assert str(caught.value).splitlines() == [
        "kites.json is not a valid tool document:",
        "  $.config.search_modes[0].field: is missing; name the field to search",
        "  $.config.topk: is not a known field; did you mean top_k?",
    ]
    document["config"]["search_modes"][0]["field"] = "name"
    document["config"]["top_k"] = document["config"].pop("topk")
    assert parse_tool(document).config.top_k == 5


def test_is_refused_as_it_changes_the_database() -> None:
    with pytest.raises(TemplateError, match=r"^line 2: SET is refused, as it changes the database"):
        check_cypher("MATCH (n) WHERE n.id IN $nodes\nSET n.seen = 1 RETURN n")
    template = "MATCH (n) WHERE n.id IN $nodes RETURN n.set AS `set`"
    assert check_cypher(template) == {"nodes"}


def birds_graph(path: Path, numbers: int) -> None:
    with GraphWriter(path) as graph:
        columns = {"id": "STRING", "vector": f"FLOAT[{numbers}]"}
        graph.nodes("Birds", columns, [{"id": "kite", "vector": [1.0] * numbers}])


def test_they_are_from_different_embedding_models(tmp_path: Path) -> None:
    path, question = tmp_path / "graph.lbug", [1.0] * 768
    birds_graph(path, 384)
    store = LadybugStore(path)
    modes = [SearchMode(type="semantic", field="vector")]
    store.create_indexes("Birds", modes)
    with pytest.raises(ToolStoreError, match=r"vectors of 384 numbers.*has 768.*different embed"):
        store.search_semantic("Birds", "vector", question, 1)
    birds_graph(path, 768)
    store.create_indexes("Birds", modes)
    assert [bird.id for bird in store.search_semantic("Birds", "vector", question, 1)] == ["kite"]


def test_has_ladybug_s_storage_version(tmp_path: Path) -> None:
    path = tmp_path / "graph.lbug"
    birds_graph(path, 8)
    content = path.read_bytes()
    path.write_bytes(content[:4] + bytes([50]) + content[5:])
    with pytest.raises(ToolStoreError, match=r"graph\.lbug has .* storage version 50; .* 49\."):
        LadybugStore(path)
    birds_graph(path, 8)
    assert LadybugStore(path).has_collection("Birds")


def test_is_damaged_a_part_of_it_is_missing(tmp_path: Path) -> None:
    path = tmp_path / "graph.lbug"
    birds_graph(path, 8)
    path.write_bytes(path.read_bytes()[:-9000])
    with pytest.raises(ToolStoreError) as caught:
        LadybugStore(path)
    assert str(caught.value) == (
        f"{path} is damaged: a part of it is missing. Build the graph again (`rag tools build "
        "--output FILE`), or take a copy of it."
    )
    birds_graph(path, 8)
    assert LadybugStore(path).has_collection("Birds")


def test_no_tool_that_is_run_has_a_parameter() -> None:
    def tool(name: str, parameter: str) -> RetrieverTool:
        query = {
            "template": f"MATCH (n) WHERE n.id IN $nodes RETURN n LIMIT ${parameter}",
            "bind_params": {parameter: 12},
        }
        mode = {"type": "lexical", "field": "name"}
        return parse_tool(
            {
                "tool_id": name,
                "tool_type": "custom_retriever",
                "description": "Flights.",
                "config": {"collection": "T", "search_modes": [mode], "cypher_config": query},
            }
        )

    connecting, direct = tool("connecting_flights", "most"), tool("direct_flights", "max_flights")
    with pytest.raises(BadParameter) as caught:
        bind_params({"max_flights": "3"}, [connecting], "cypher")
    assert str(caught.value) == (
        "No tool that is run (connecting_flights) has a parameter 'max_flights'. "
        "There are: most (default 12)."
    )
    assert bind_params({"max_flights": "3"}, [direct], "cypher") == {"max_flights": 3}


def test_the_starting_nodes_are_returned_instead(tmp_path: Path) -> None:
    path = tmp_path / "graph.lbug"
    with GraphWriter(path) as graph:
        graph.nodes("Birds", {"id": "STRING", "name": "STRING"}, [{"id": "k", "name": "red kite"}])
        graph.nodes("Notes", {"id": "STRING"}, [{"id": "n1"}])
        graph.relationships("SEEN_IN", "Birds", "Notes", {}, [{"from": "k", "to": "n1"}])

    def found(relations: str) -> ToolResult:
        template = "MATCH (b:Birds)-->(n:Notes) WHERE b.id IN $nodes RETURN n.id AS id"
        query = {"template": template, "relations_collection": relations}
        mode = {"type": "lexical", "field": "name"}
        tool = parse_tool(
            {
                "tool_id": "birds",
                "tool_type": "custom_retriever",
                "description": "Birds.",
                "config": {"collection": "Birds", "search_modes": [mode], "cypher_config": query},
            }
        )
        return ToolRetriever(tool=tool, store=LadybugStore(path)).run("kite")

    wrong, right = found("SEEN_AT"), found("SEEN_IN")
    assert wrong.notes[-1] == (
        "The graph query did not run: there is no relations collection 'SEEN_AT'. "
        "The starting nodes are returned instead."
    )
    assert [document.id for document in wrong.documents] == ["k"]
    assert [document.id for document in right.documents] == ["n1"]
    assert right.expanded


def test_send_the_header_authorization_bearer() -> None:
    from retriever_tools.server import create_app

    async def answer(request: Any) -> Any:
        raise AssertionError("asked")

    def status(token: str) -> int:
        app = httpx.ASGITransport(create_app(answer, token="that-of-this-start"))

        async def ask() -> httpx.Response:
            async with httpx.AsyncClient(transport=app, base_url="http://service") as client:
                return await client.get(
                    "/v1/tools", headers={"Authorization": f"Bearer {token}"} if token else {}
                )

        response = asyncio.run(ask())
        if response.status_code == 401:
            assert "Send the header Authorization: Bearer" in response.json()["error"]["message"]
        return response.status_code

    assert [status(token) for token in ("", "that-of-an-earlier-start")] == [401, 401]
    assert status("that-of-this-start") == 200


def test_does_not_support_structured_output() -> None:
    tool = parse_tool(
        {
            "tool_id": "kites",
            "tool_type": "local",
            "description": "Kites and other birds.",
            "config": {},
        }
    )
    model = ExtractiveChatModel(make_scorer=lambda texts: pytest.fail("not asked"))
    with pytest.raises(StructuredOutputError) as caught:
        choose_tools_by_model("Where are kites?", [tool], model)
    assert str(caught.value) == (
        "ExtractiveChatModel does not support structured output. Choose tools by their "
        "descriptions' similarity (choose_tools), or use a chat model that can."
    )


def test_an_argument_of_invoke_is_ignored() -> None:
    birds = [doc("red kite"), doc("red owl")]
    assert texts(ListRetriever(documents=birds).invoke("red", k=1)) == ["red kite", "red owl"]
    assert len(ListRetriever(documents=birds, k=1).documents) == 2  # type: ignore[call-arg]

    assert texts(EchoRetriever(documents=birds).invoke("red", k=1)) == ["red kite"]
    with pytest.raises(ValueError, match="top_k"):
        EchoRetriever(documents=birds, top_k=1)  # type: ignore[call-arg]


def test_must_return_a_list_of_document_it_returned_nonetype() -> None:
    class MyRetriever(BaseRetriever):
        def _get_relevant_documents(self, query: str, *, run_manager: Any) -> Any:
            if query == "kite":
                return [doc("red kite")]

    assert MyRetriever().invoke("owl") is None  # type: ignore[comparison-overlap]

    both = RRFEnsembleRetriever(retrievers=[MyRetriever()])
    assert texts(both.invoke("kite")) == ["red kite"]
    with pytest.raises(TypeError, match="MyRetriever must return a list of Document, it returned"):
        both.invoke("owl")


def test_input_should_be_a_valid_dictionary_or_instance_of_baseretriever() -> None:
    function = RunnableLambda(lambda query: [doc("red kite")])
    with pytest.raises(ValueError, match="Input should be a valid dictionary or instance of BaseR"):
        RRFEnsembleRetriever(retrievers=[function])  # type: ignore[list-item]

    class Wrapped(EchoRetriever):
        def _search(self, query: str, count: int) -> list[Document]:
            return function.invoke(query)[:count]

    ensemble = RRFEnsembleRetriever(retrievers=[Wrapped(documents=[])])
    assert texts(ensemble.invoke("kite")) == ["red kite"]
