from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ragbook.copying import CopyError, copy_retrievers, retriever_files
from retrievers import _HOME

FILES = retriever_files()

PRELUDE = """
import sys
class OnlyTheCopy:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("retrievers", "ragbook"):
            raise ImportError(f"{name} must not be imported by a copied file")
sys.meta_path.insert(0, OnlyTheCopy())
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
A, B = Document(page_content="red kite", id="a"), Document(page_content="blue heron", id="b")
class Fixed(BaseRetriever):
    found: list
    def _get_relevant_documents(self, query, *, run_manager):
        return self.found
def ids(documents):
    return [document.id for document in documents]
"""

PROCESSES = """
import json, os, signal, sys
for line in sys.stdin:
    folder, use = json.loads(line)
    child = os.fork()
    if not child:
        signal.alarm(120)
        os.chdir(folder)
        os.dup2(os.open("errors.txt", os.O_WRONLY | os.O_CREAT), 2)
        os.dup2(2, 1)
        exec(use)
        break
    print(os.waitpid(child, 0)[1], flush=True)
"""
"""Runs each use in a process of its own, which has nothing imported but the lines above it."""

USES = {
    "documents": """
from app.documents import document_key
assert document_key(A) != document_key(B)
""",
    "json_mapping": """
from app.json_mapping import JsonMapping
assert JsonMapping(text="/t", id=None)({"t": "red kite"}).page_content == "red kite"
""",
    "visibility": """
from app.visibility import visibility_of
assert visibility_of(Fixed(found=[1])) != visibility_of(Fixed(found=[2]))
""",
    "bm25": """
from app.bm25 import BM25Retriever
assert ids(BM25Retriever.from_documents([A, B]).invoke("herons")) == ["b"]
""",
    "bm25_index": """
from app.bm25_index import EagerBM25Okapi
assert EagerBM25Okapi([["red", "kite"], ["heron"]]).rank(["heron"])[0].tolist() == [1]
""",
    "bm25_file": """
from pathlib import Path
from app.bm25_file import read_index, write_index
from app.bm25_index import EagerBM25Okapi
write_index(Path("i.npz"), {}, EagerBM25Okapi([["red", "kite"], ["heron"]]), [A, B])
for mapped in (False, True):
    _, bm25, documents = read_index(Path("i.npz"), mapped)
    assert (bm25.rank(["heron"])[0].tolist(), ids(documents)) == ([1], ["a", "b"])
""",
    "dense": """
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.vectorstores import InMemoryVectorStore
from app.dense import DenseRetriever
store = InMemoryVectorStore(DeterministicFakeEmbedding(size=16))
store.add_documents([A, B])
assert ids(DenseRetriever(vectorstore=store, k=1).invoke("blue heron")) == ["b"]
""",
    "echo": """
from app.echo import EchoRetriever
assert ids(EchoRetriever(documents=[A, B]).invoke("heron?")) == ["b"]
""",
    "ensemble": """
from app.ensemble import RRFEnsembleRetriever
legs = [Fixed(found=[A, B]), Fixed(found=[B])]
assert ids(RRFEnsembleRetriever(retrievers=legs).invoke("q")) == ["b", "a"]
""",
    "adaptive_fusion": """
from app.adaptive_fusion import AdaptiveFusionRetriever
scored = [d.model_copy(update={"metadata": {"dense_score": s}}) for d, s in [(A, 0.1), (B, 0.3)]]
assert ids(AdaptiveFusionRetriever(retrievers=[Fixed(found=scored)]).invoke("q")) == ["b", "a"]
""",
    "score_fusion": """
from app.score_fusion import ScoreFusionRetriever
scored = [d.model_copy(update={"metadata": {"x_score": s}}) for d, s in [(A, 1.0), (B, 3.0)]]
assert ids(ScoreFusionRetriever(retrievers=[Fixed(found=scored)]).invoke("q")) == ["b", "a"]
""",
    "threshold": """
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.vectorstores import InMemoryVectorStore
from app.threshold import ThresholdRetriever
store = InMemoryVectorStore(DeterministicFakeEmbedding(size=16))
store.add_documents([A, B])
near = ThresholdRetriever(vectorstore=store, score_threshold=0.99)
assert ids(near.invoke("blue heron")) == ["b"]
""",
    "tenant": """
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.vectorstores import InMemoryVectorStore
from app.tenant import TenantScopedRetriever
store = InMemoryVectorStore(DeterministicFakeEmbedding(size=16))
store.add_documents([A.model_copy(update={"metadata": {"tenant": "x"}}), B])
scoped = TenantScopedRetriever(vectorstore=store, tenant_id="x")
assert ids(scoped.invoke("blue heron")) == ["a"]
""",
    "permission": """
from app.permission import PermissionFilteredRetriever
visible = PermissionFilteredRetriever(base_retriever=Fixed(found=[A, B]), visible_ids={"b"})
assert ids(visible.invoke("q")) == ["b"]
""",
    "cross_encoder": """
from app.cross_encoder import HuggingFaceCrossEncoder
assert HuggingFaceCrossEncoder("not/loaded").score([]) == []
""",
    "late_interaction": """
from app.late_interaction import LateInteractionCrossEncoder
assert LateInteractionCrossEncoder("not/loaded").score([]) == []
""",
    "onnx_cross_encoder": """
from app.onnx_cross_encoder import OnnxCrossEncoder
assert OnnxCrossEncoder("not/loaded", "kept").score([]) == []
""",
    "batching": """
from app.batching import CommonBatches, token_batches
assert token_batches([3, 9, 4], 10, 2) == [[1], [2, 0]]
assert CommonBatches(lambda texts: [len(text) for text in texts]).run(["kite"]) == [4]
""",
    "pointers": """
import pytest
from app.pointers import PointerError, pointed_file
with pytest.raises(PointerError, match="outside"):
    pointed_file(Document(page_content="a figure", metadata={"path": "../x.svg"}), "app")
""",
    "rerank": """
from langchain_core.cross_encoders import BaseCrossEncoder
from app.rerank import RerankRetriever
class Length(BaseCrossEncoder):
    def score(self, text_pairs):
        return [len(text) for _, text in text_pairs]
reranker = RerankRetriever(base_retriever=Fixed(found=[A, B]), cross_encoder=Length(), top_n=1)
assert ids(reranker.invoke("q")) == ["b"]
""",
    "multi_query": """
from langchain_core.runnables import RunnableLambda
from app.multi_query import MultiQueryRetriever
rewriter = RunnableLambda(lambda question: [question + " again"])
several = MultiQueryRetriever(retriever=Fixed(found=[A, B]), llm=rewriter)
assert ids(several.invoke("q")) == ["a", "b"]
""",
    "merger": """
from app.merger import MergerRetriever
legs = [Fixed(found=[A, B]), Fixed(found=[B])]
assert ids(MergerRetriever(retrievers=legs).invoke("q")) == ["a", "b"]
""",
    "fallback": """
from app.fallback import FallbackRetriever
class Broken(BaseRetriever):
    def _get_relevant_documents(self, query, *, run_manager):
        raise OSError
assert ids(FallbackRetriever(retrievers=[Broken(), Fixed(found=[A])]).invoke("q")) == ["a"]
""",
    "http_api": """
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from app.http_api import HttpApiRetriever
class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'{"results": [{"id": "a", "text": "red kite"}]}')
server = HTTPServer(("127.0.0.1", 0), Handler)
threading.Thread(target=server.serve_forever, daemon=True).start()
search = HttpApiRetriever(base_url=f"http://127.0.0.1:{server.server_port}")
assert ids(search.invoke("kite")) == ["a"]
""",
    "sql": """
import sqlite3
from app.sql import SqlMetadataEnricher, SqlRetriever
with sqlite3.connect("notes.db") as notes:
    notes.execute("CREATE TABLE notes (id TEXT PRIMARY KEY, text TEXT)")
    notes.execute("INSERT INTO notes VALUES ('a', 'red kite')")
search = SqlRetriever(database="sqlite:///notes.db", table="notes", metadata_columns=["text"])
search.create_index()
assert ids(search.invoke("kites")) == ["a"]
joined = SqlMetadataEnricher(base_retriever=Fixed(found=[A, B]), database="sqlite:///notes.db",
    table="notes", id_column="id", columns=["text"])
assert [d.metadata["in_database"] for d in joined.invoke("q")] == [True, False]
""",
    "faiss_store": """
from langchain_core.embeddings import DeterministicFakeEmbedding
from app.faiss_store import FaissStore
store = FaissStore.from_documents([A, B], DeterministicFakeEmbedding(size=16))
store.save_local("saved")
loaded = FaissStore.load_local("saved", DeterministicFakeEmbedding(size=16))
assert ids(loaded.similarity_search("blue heron", k=1)) == ["b"]
""",
    "lance_filter": """
import pyarrow
from app.lance_filter import lance_filter
schema = pyarrow.schema([("n", pyarrow.int64())])
assert lance_filter({"n": {"$gt": 2.5}}, schema) == "`n` > 2"
""",
    "lance_table": """
from langchain_core.embeddings import DeterministicFakeEmbedding
from app.lance_table import create_text_index, new_table, open_table, unindexed_rows
with new_table([A, B], DeterministicFakeEmbedding(size=16), "store") as table:
    create_text_index(table)
assert open_table("store", "documents").count_rows() == 2
assert unindexed_rows(table) == {"text_idx": 0}
""",
    "lance": """
from langchain_core.embeddings import DeterministicFakeEmbedding
from app.lance import LanceRetriever
model = DeterministicFakeEmbedding(size=16)
made = LanceRetriever.from_documents([A, B], model, "store", k=1)
opened = LanceRetriever.open("store", "documents", model)
assert ids(made.invoke("heron")) == ids(opened.invoke("heron", k=1))
assert ids(LanceRetriever.open("store", "documents", mode="fts").invoke("heron")) == ["b"]
""",
    "knowledge_base": """
import sqlite3
from app.knowledge_base import TicketKnowledgeRetriever
with sqlite3.connect("desk.db") as desk:
    desk.execute("CREATE TABLE tickets (doc_id TEXT, team TEXT, title, status, updated)")
    desk.execute("INSERT INTO tickets VALUES ('a', 'x', 'Kite', 'solved', '2026-11-30')")
    desk.execute("CREATE TABLE members (user_name TEXT, team TEXT)")
    desk.execute("INSERT INTO members VALUES ('ada', 'x')")
legs = {"vectors": Fixed(found=[A, B]), "search": Fixed(found=[B])}
mine = TicketKnowledgeRetriever(**legs, database="sqlite:///desk.db", user="ada")
assert ids(mine.invoke("q")) == ["a"]
""",
    "feedback": """
from app.feedback import FeedbackQueryRewriter
assert FeedbackQueryRewriter(Fixed(found=[])).invoke("kite") == []
""",
    "sentences": """
from app.sentences import cut_document, located_sentences
places = [place for _, place in located_sentences("A kite. A heron.")]
assert cut_document(Document(page_content="A kite. A heron."), places[:1]).page_content == "A kite."
""",
    "compression": """
from langchain_core.documents import BaseDocumentCompressor
from app.compression import ContextualCompressionRetriever, DocumentCompressorPipeline
class Last(BaseDocumentCompressor):
    def compress_documents(self, documents, query, callbacks=None):
        return documents[-1:]
pipeline = DocumentCompressorPipeline(compressors=[Last()])
base = Fixed(found=[A, B])
last = ContextualCompressionRetriever(base_retriever=base, compressor=pipeline)
assert ids(last.invoke("q")) == ["b"]
""",
    "compressors": """
from langchain_core.cross_encoders import BaseCrossEncoder
from app.compressors import CrossEncoderFilter, SentenceWindow
class Length(BaseCrossEncoder):
    def score(self, text_pairs):
        return [len(text) for _, text in text_pairs]
kept = CrossEncoderFilter(cross_encoder=Length(), top_n=1).compress_documents([A, B], "q")
assert ids(kept) == ["b"]
assert SentenceWindow(cross_encoder=Length(), top_n=1).compress_documents([A, B], "q")[0].id == "b"
""",
    "llm_compressors": """
from langchain_core.language_models import FakeListChatModel
from app.llm_compressors import LLMExtractor, LLMFilter
model = FakeListChatModel(responses=["Blue heron"])
assert ids(LLMExtractor(llm=model).compress_documents([A, B], "q")) == ["b"]
assert ids(LLMFilter(llm=model).compress_documents([A, B], "q")) == ["a", "b"]
""",
    "redundant": """
from langchain_core.embeddings import DeterministicFakeEmbedding
from app.redundant import EmbeddingsRedundantFilter
different = EmbeddingsRedundantFilter(embeddings=DeterministicFakeEmbedding(size=16))
assert ids(different.transform_documents([A, B, A])) == ["a", "b"]
""",
    "cross_encoder_reranker": """
from langchain_core.cross_encoders import BaseCrossEncoder
from app.cross_encoder_reranker import CrossEncoderReranker
class Length(BaseCrossEncoder):
    def score(self, text_pairs):
        return [len(text) for _, text in text_pairs]
assert ids(CrossEncoderReranker(model=Length(), top_n=1).compress_documents([A, B], "q")) == ["b"]
""",
    "listwise": """
from langchain_core.language_models import FakeListChatModel
from app.listwise import LLMListwiseRerank
ranked = LLMListwiseRerank.from_llm(FakeListChatModel(responses=["[1, 0]"]))
assert ids(ranked.compress_documents([A, B], "q")) == ["b", "a"]
""",
    "reorder": """
from app.reorder import LongContextReorder, ReorderRetriever
assert ids(ReorderRetriever(base_retriever=Fixed(found=[A, B])).invoke("q")) == ["b", "a"]
assert ids(LongContextReorder().transform_documents([A, B])) == ["b", "a"]
""",
    "families": """
from langchain_core.documents import BaseDocumentTransformer
from app.families import split_documents
class Words(BaseDocumentTransformer):
    def transform_documents(self, documents, **kwargs):
        return [Document(page_content=w) for d in documents for w in d.page_content.split()]
parents, children = split_documents([A, B], Words())
assert (ids(parents), ids(children)) == (["a", "b"], ["a/1", "a/2", "b/1", "b/2"])
""",
    "parent_document": """
from langchain_core.stores import InMemoryStore
from app.parent_document import ParentDocumentRetriever
docstore = InMemoryStore()
docstore.mset([("a", A)])
child = Document(page_content="kite", metadata={"parent_id": "a"})
parents = ParentDocumentRetriever(base_retriever=Fixed(found=[child]), docstore=docstore)
assert ids(parents.invoke("q")) == ["a"]
""",
    "cached": """
from app.cached import CachedRetriever
cached = CachedRetriever(retriever=Fixed(found=[A, B]))
assert ids(cached.invoke("q")) == ids(cached.invoke("q")) == ["a", "b"]
assert cached.info().hits == 1
""",
    "time_weighted": """
from app.time_weighted import TimeWeightedRetriever
dated = [
    d.model_copy(update={"metadata": {"date": date, "x_score": 1.0}})
    for d, date in [(A, "2026-01-01"), (B, "2026-05-01")]
]
assert ids(TimeWeightedRetriever(base_retriever=Fixed(found=dated)).invoke("q")) == ["b", "a"]
""",
    "knn": """
from langchain_core.embeddings import DeterministicFakeEmbedding
from app.knn import KNNRetriever
embeddings = DeterministicFakeEmbedding(size=16)
assert ids(KNNRetriever.from_documents([A, B], embeddings, k=1).invoke("blue heron")) == ["b"]
""",
    "svm": """
from langchain_core.embeddings import DeterministicFakeEmbedding
from app.svm import SVMRetriever
embeddings = DeterministicFakeEmbedding(size=16)
assert ids(SVMRetriever.from_documents([A, B], embeddings, k=1).invoke("blue heron")) == ["b"]
""",
    "tfidf": """
from app.tfidf import TFIDFRetriever
assert ids(TFIDFRetriever.from_documents([A, B]).invoke("heron")) == ["b"]
""",
    "tfidf_file": """
from pathlib import Path
from app.tfidf_file import read_tfidf, write_tfidf
write_tfidf(Path("i.npz"), 4, [A, B], None, None)
assert ids(read_tfidf(Path("i.npz"), {})["docs"]) == ["a", "b"]
""",
    "rephrase": """
from langchain_core.runnables import RunnableLambda
from app.rephrase import RePhraseQueryRetriever
chain = RunnableLambda(lambda question: "kite")
assert ids(RePhraseQueryRetriever(retriever=Fixed(found=[A]), llm_chain=chain).invoke("q")) == ["a"]
""",
    "query_parser": """
from app.query_parser import parse_filter
assert parse_filter('eq("colour", "red")') == parse_filter({"colour": "red"})
""",
    "query_filter": """
from app.query_filter import AttributeInfo, FilterTranslator
from langchain_core.structured_query import Comparator, Comparison
is_red = Comparison(comparator=Comparator.EQ, attribute="colour", value="red")
assert is_red.accept(FilterTranslator()) == {"colour": {"$eq": "red"}}
""",
    "self_query": """
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.runnables import RunnableLambda
from langchain_core.vectorstores import InMemoryVectorStore
from app.self_query import SelfQueryRetriever
store = InMemoryVectorStore(DeterministicFakeEmbedding(size=16))
store.add_documents([A.model_copy(update={"metadata": {"colour": "red"}}), B])
said = RunnableLambda(lambda asked: '{"query": "bird", "filter": {"colour": "red"}}')
assert ids(SelfQueryRetriever(vectorstore=store, query_constructor=said).invoke("q")) == ["a"]
""",
    "mmr": """
from langchain_core.embeddings import DeterministicFakeEmbedding
from app.mmr import MMRRetriever
embeddings = DeterministicFakeEmbedding(size=16)
assert ids(MMRRetriever(base_retriever=Fixed(found=[A, B]), embeddings=embeddings).invoke(
    "blue heron", top_n=1)) == ["b"]
""",
}


def test_every_file_has_a_use_below() -> None:
    assert sorted(USES) == sorted(FILES)


@pytest.fixture(scope="module")
def run_in(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[Path, str], str]]:
    """Run code in a folder, in a process of its own, and return what it failed with.

    LangChain takes a second to import, so that is done once, before the process is forked.
    """
    with subprocess.Popen(
        [sys.executable, "-c", PRELUDE + PROCESSES],
        cwd=tmp_path_factory.mktemp("empty"),
        env={key: value for key, value in os.environ.items() if key != "PYTHONPATH"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as runner:
        assert runner.stdin
        assert runner.stdout

        def run(folder: Path, code: str) -> str:
            print(json.dumps([str(folder), code]), file=runner.stdin, flush=True)
            status = runner.stdout.readline()
            errors = (folder / "errors.txt").read_text("utf-8")
            return "" if status == "0\n" else f"status {status}{errors}"

        yield run


@pytest.mark.parametrize("name", sorted(FILES))
def test_a_file_copied_alone_into_an_empty_folder_works(
    name: str, run_in: Callable[[Path, str], str], tmp_path: Path
) -> None:
    copy_retrievers([name], tmp_path / "app")
    copied = sorted(path.name for path in (tmp_path / "app").iterdir())
    assert copied == sorted({f"{name}.py", *(f"{s}.py" for s in FILES[name].siblings)})
    assert run_in(tmp_path, USES[name]) == ""


def test_what_does_not_work_alone_is_noticed(
    run_in: Callable[[Path, str], str], tmp_path: Path
) -> None:
    (tmp_path / "app").mkdir()
    assert "AssertionError" in run_in(tmp_path, "assert not ids([A])")
    assert "No module named 'app.bm25'" in run_in(tmp_path, USES["bm25"])
    (tmp_path / "app" / "bm25.py").write_text("from retrievers.bm25 import BM25Retriever\n")
    assert "must not be imported by a copied file" in run_in(tmp_path, USES["bm25"])
    assert run_in(tmp_path, "import sys; assert 'numpy' not in sys.modules") == ""


@pytest.mark.parametrize("name", sorted(FILES))
def test_a_file_imports_at_most_documents_and_one_other_beside_it(name: str) -> None:
    others = set(FILES[name].siblings) - {"documents"}
    several = {
        # The retriever, its postings and their file would be a thousand lines in one.
        "bm25": {"bm25_file", "bm25_index"},
        # A table is searched with the filters that its columns allow, hence by both files.
        "lance": {"lance_filter", "lance_table"},
        # What a model says is read, checked and searched for: each by itself is of use elsewhere.
        "self_query": {"dense", "query_filter", "query_parser"},
        # What is exported is loaded and checked as the cross-encoder that it stands in for.
        "onnx_cross_encoder": {"batching", "cross_encoder"},
    }
    assert len(others) <= 1 or others == several.get(name)
    assert FILES[name].summary


def test_names_are_files_or_classes(tmp_path: Path) -> None:
    for name in ("ensemble", "ensemble.py", "RRFEnsembleRetriever"):
        report = copy_retrievers([name], tmp_path / name)
        assert [path.name for path in report.written] == ["ensemble.py", "documents.py"]


@pytest.mark.parametrize(
    ("to", "package"),
    [
        ("src/app/retrievers", "app.retrievers"),
        ("retrievers", "retrievers"),
        ("lib/rag/", "lib.rag"),
        ("../elsewhere/rag", "rag"),
        ("my-project/src/app", "app"),
        ("my-project", "your_package"),
        (".", "here"),
    ],
)
def test_a_copy_says_how_it_is_imported(
    to: str, package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    report = copy_retrievers(["tenant", "SqlMetadataEnricher", "documents", "tenant.py"], Path(to))
    assert report.imports == [
        f"from {package}.tenant import TenantScopedRetriever",
        f"from {package}.sql import SqlMetadataEnricher",
    ]


def test_below_a_package_a_copy_is_imported_from_that_wherever_one_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "src" / "scratch"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (tmp_path / "here").mkdir()
    for number, here in enumerate((tmp_path, tmp_path / "here", package.parent, package)):
        monkeypatch.chdir(here)
        to = Path(os.path.relpath(package / f"retrievers{number}"))
        report = copy_retrievers(["knn"], to)
        assert report.imports == [f"from scratch.retrievers{number}.knn import KNNRetriever"]


def test_every_class_of_the_package_is_found_in_the_file_that_it_is_said_to_be_in() -> None:
    for name, file in FILES.items():
        own = [cls for cls, home in _HOME.items() if home == name]
        assert (file.main in own) if own else (file.main in (None, "JsonMapping"))


def test_the_uv_add_line_names_every_package_with_the_tested_versions(tmp_path: Path) -> None:
    report = copy_retrievers(["bm25", "multi_query"], tmp_path)
    names = [requirement.partition(">")[0] for requirement in report.packages]
    assert names == ["cachetools", "langchain-core", "numpy", "pystemmer", "rank-bm25"]
    assert report.uv_add.startswith('uv add "cachetools>=')


def test_an_unknown_name_is_an_error_with_a_suggestion(tmp_path: Path) -> None:
    with pytest.raises(CopyError, match="Did you mean bm25"):
        copy_retrievers(["bm52"], tmp_path)
    with pytest.raises(CopyError, match="EnsembleRetriever is replaced by 'ensemble'"):
        copy_retrievers(["EnsembleRetriever"], tmp_path)
    with pytest.raises(CopyError, match="LLMChainFilter is replaced by 'llm_compressors'"):
        copy_retrievers(["LLMChainFilter"], tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_every_unknown_name_is_told_what_it_may_have_been(tmp_path: Path) -> None:
    with pytest.raises(CopyError) as caught:
        copy_retrievers(["zzzz", "knn", "tfdif", "zzzz", "EnsembleRetriever"], tmp_path / "to")
    assert str(caught.value) == (
        "There is no retriever named 'zzzz'. "
        "There is no retriever named 'tfdif'. Did you mean tfidf? "
        "LangChain's EnsembleRetriever is replaced by 'ensemble' here: copy that. "
        "See `rag copy --list`."
    )
    assert not (tmp_path / "to").exists()


def test_an_edited_file_is_kept_without_force_and_nothing_else_is_written(tmp_path: Path) -> None:
    copy_retrievers(["ensemble"], tmp_path)
    mine = tmp_path / "ensemble.py"
    mine.write_text("# mine\n")
    with pytest.raises(CopyError, match=r"ensemble\.py.*--force"):
        copy_retrievers(["ensemble", "bm25"], tmp_path)
    assert mine.read_text() == "# mine\n"
    assert not (tmp_path / "bm25.py").exists()
    copy_retrievers(["ensemble"], tmp_path, force=True)
    assert mine.read_bytes() == FILES["ensemble"].path.read_bytes()


def test_copying_twice_changes_nothing(tmp_path: Path) -> None:
    copy_retrievers(["ensemble"], tmp_path)
    report = copy_retrievers(["ensemble"], tmp_path)
    assert report.written == []
    assert len(report.unchanged) == 2


def test_the_splitters_that_fill_the_stores_of_parents_are_named(tmp_path: Path) -> None:
    assert '"langchain-text-splitters>=' in copy_retrievers(["parent_document"], tmp_path).uv_add
    assert "splitters" not in copy_retrievers(["bm25"], tmp_path).uv_add


def test_a_target_that_is_a_file_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(CopyError, match="is a file"):
        copy_retrievers(["ensemble"], tmp_path / "file")
    with pytest.raises(CopyError, match="Could not write"):
        copy_retrievers(["ensemble"], tmp_path / "file" / "below")


def test_a_copied_file_is_readable_by_others(tmp_path: Path) -> None:
    copy_retrievers(["documents"], tmp_path)
    assert (tmp_path / "documents.py").stat().st_mode & 0o777 == 0o644


def test_all_copies_every_file(tmp_path: Path) -> None:
    report = copy_retrievers(["all"], tmp_path)
    assert sorted(path.stem for path in report.written) == sorted(FILES)
