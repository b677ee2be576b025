"""Hybrid search and several wordings at 10,000 passages, against their peers, in turn.

uv run benchmarks/hybrid_speed.py
uv run benchmarks/hybrid_speed.py --multi-query

The passages are those of two test collections and, up to `--passages`, mixtures: half of the
sentences of one passage and half of another's, with the mean of their vectors. So words and vectors
are those of real text, and nothing but the two collections has to be embedded (from the cache, if
it is there). All sides get the same texts and the same vectors and return the best 10.

The first table is hybrid search, once with the queries' vectors prepared, so that the times are
those of searching and fusing, and once with each query embedded by all-MiniLM-L6-v2. The second is
multi-query retrieval; the rewordings are prepared, so no chat model is timed, and each query is
embedded. In each round every row is asked the same question, so that what else the machine does
falls on all of them.
"""

from __future__ import annotations

import argparse
import logging
import os
import random
import shutil
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from langchain_core.callbacks import CallbackManagerForLLMRun
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.language_models.chat_models import SimpleChatModel
from langchain_core.messages import BaseMessage
from langchain_core.prompts import PromptTemplate
from langchain_core.vectorstores import InMemoryVectorStore
from methods import write_figures
from numpy.typing import NDArray
from options import folder, output_file
from tqdm import tqdm

from ragbook.collection import load_beir
from ragbook.embedding_cache import cached_embeddings
from ragbook.exact import ExactVectorStore
from ragbook.profiles import EmbeddedProfile
from retrievers.bm25 import BM25Retriever
from retrievers.dense import DenseRetriever
from retrievers.ensemble import RRFEnsembleRetriever
from retrievers.multi_query import MultiQueryRetriever
from retrievers.sentences import split_sentences

K = 10
SEED = 7

Search = Callable[[str], Any]


class Corpus(NamedTuple):
    """n passages with their n x d vectors, and questions with theirs."""

    documents: list[Document]
    vectors: NDArray[np.float32]
    queries: dict[str, list[float]]


class Prepared(Embeddings):
    """Stands in for a model whose answers are known beforehand."""

    def __init__(self, corpus: Corpus) -> None:
        self.queries = corpus.queries

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        raise NotImplementedError("The passages' vectors are put into the stores beforehand.")

    def embed_query(self, text: str) -> list[float]:
        return self.queries[text]


class Rewriter(SimpleChatModel):
    """Stands in for a chat model: the prompt is the question, the answer its rewordings."""

    rewordings: dict[str, list[str]]

    @property
    def _llm_type(self) -> str:
        return "prepared"

    def _call(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> str:
        return "\n".join(self.rewordings[messages[-1].text])


def load(folders: Sequence[Path], size: int, questions: int) -> Corpus:
    """Read the collections, and mix their passages until there are enough."""
    collections = [load_beir(folder) for folder in folders]
    texts = list(
        dict.fromkeys(d.page_content for c in collections for d in c.documents if d.page_content)
    )
    cache = cached_embeddings(EmbeddedProfile(), progress=True)
    matrix = np.array(cache.embed_passages(texts))
    found, vectors = mixed(texts, matrix, size)
    asked = [query for c in collections for query in c.queries.values()]
    chosen = random.Random(SEED).sample(asked, min(questions, len(asked)))
    queries = dict(zip(chosen, cache.embed_queries(chosen)))
    documents = [
        Document(text, id=str(number), metadata={"source": f"{number % 100}.txt"})
        for number, text in enumerate(found)
    ]
    return Corpus(documents, vectors, queries)


def mixed(
    texts: Sequence[str], matrix: NDArray[np.float32], size: int
) -> tuple[list[str], NDArray[np.float32]]:
    """Return `size` texts and their vectors: the given ones first, then mixtures of two."""
    chance = random.Random(SEED)
    sentences = [split_sentences(text) for text in texts]
    found, rows = list(texts[:size]), list(matrix[:size])
    while len(found) < size:
        one, other = chance.sample(range(len(texts)), 2)
        parts = [*sentences[one][::2], *sentences[other][1::2]]
        found.append(f"{' '.join(parts)} ({len(found)})")
        rows.append(matrix[one] + matrix[other])
    vectors = np.array(rows)
    return found, vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def rewordings(queries: Sequence[str], count: int) -> dict[str, list[str]]:
    """Return `count` rewordings of each question: its own words in another order."""
    chance = random.Random(SEED)
    return {q: [" ".join(chance.sample(q.split(), len(q.split()))) for _ in range(count)]
            for q in queries}  # fmt: skip


def in_memory_store(corpus: Corpus, embeddings: Embeddings) -> InMemoryVectorStore:
    store = InMemoryVectorStore(embeddings)
    for document, vector in zip(corpus.documents, corpus.vectors.tolist()):
        store.store[str(document.id)] = {
            "id": document.id,
            "vector": vector,
            "text": document.page_content,
            "metadata": document.metadata,
        }
    return store


def hybrid_rows(corpus: Corpus, model: Embeddings, work: Path) -> dict[str, Search]:
    """Return every hybrid search that is timed, by the name of its row."""
    from langchain_classic.retrievers import EnsembleRetriever
    from langchain_community.retrievers import BM25Retriever as CommunityBM25Retriever

    keyword = BM25Retriever.from_documents(corpus.documents, k=K)
    community = CommunityBM25Retriever.from_documents(corpus.documents, k=K)
    table = lance_table(corpus, work)
    rows: dict[str, Search] = {}
    for suffix, embeddings in (("", Prepared(corpus)), (", query embedded", model)):
        store = ExactVectorStore(corpus.documents, corpus.vectors, embeddings)
        ours = RRFEnsembleRetriever(
            retrievers=[DenseRetriever(vectorstore=store, k=K), keyword], top_n=K
        )
        peer = in_memory_store(corpus, embeddings).as_retriever(search_kwargs={"k": K})
        theirs = EnsembleRetriever(retrievers=[peer, community])
        rows[f"ours{suffix}"] = ours.invoke
        rows[f"langchain-classic{suffix}"] = theirs.invoke
        rows[f"LanceDB{suffix}"] = lance_search(table, embeddings)
    return rows


def lance_table(corpus: Corpus, work: Path) -> Any:
    import lancedb

    rows = [
        {"id": d.id, "text": d.page_content, "vector": vector}
        for d, vector in zip(corpus.documents, corpus.vectors)
    ]
    table = lancedb.connect(work).create_table("passages", rows)
    table.create_fts_index("text")
    return table


def lance_search(table: Any, embeddings: Embeddings) -> Search:
    from lancedb.rerankers import RRFReranker

    reranker = RRFReranker()

    def search(query: str) -> Any:
        asked = table.search(query_type="hybrid").vector(embeddings.embed_query(query)).text(query)
        return asked.rerank(reranker).limit(K).select(["id", "text"]).to_list()

    return search


def multi_query_rows(corpus: Corpus, model: Embeddings) -> dict[str, Search]:
    """Return one search, and those in several wordings, by the name of the row."""
    from langchain_classic.retrievers import MultiQueryRetriever as ClassicMultiQueryRetriever

    prompt = PromptTemplate.from_template("{question}")
    store = ExactVectorStore(corpus.documents, corpus.vectors, model)
    one = DenseRetriever(vectorstore=store, k=K)
    stores = {"same store": store, "in-memory store": in_memory_store(corpus, model)}
    rows: dict[str, Search] = {"one query": one.invoke}
    for count in (3, 4):
        llm = Rewriter(rewordings=rewordings(list(corpus.queries), count))
        ours = MultiQueryRetriever(retriever=one, llm=llm, prompt=prompt, num_queries=count)
        rows[f"ours, the question and {count}"] = ours.invoke
        for name, peer in stores.items():
            classic = ClassicMultiQueryRetriever.from_llm(
                peer.as_retriever(search_kwargs={"k": K}), llm, prompt, include_original=True
            )
            rows[f"langchain-classic, the question and {count}, {name}"] = classic.invoke
    return rows


def measure(rows: dict[str, Search], queries: Sequence[str]) -> dict[str, list[float]]:
    """Return the milliseconds of each row on the clock, and of processor time, medians."""
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in rows}
    for number, query in enumerate(tqdm(queries, leave=False, disable=None)):
        names = list(rows)
        for name in names[number % len(names) :] + names[: number % len(names)]:
            clock, processor = time.perf_counter(), time.process_time()
            rows[name](query)
            spent = time.perf_counter() - clock, time.process_time() - processor
            if number >= 3:  # the first ones load and warm up
                times[name].append(spent)
    return {
        name: [1000 * statistics.median(column) for column in zip(*spent)]
        for name, spent in times.items()
    }


def main() -> None:
    """Print one table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--multi-query", action="store_true", help="several wordings instead")
    parser.add_argument("--datasets", type=folder, default="../shared/datasets")
    parser.add_argument("--names", nargs="+", default=["cranfield", "xquad-en"])
    parser.add_argument("--passages", type=int, default=10_000)
    parser.add_argument("--questions", type=int, default=60)
    parser.add_argument("--json", type=output_file, help="also write the figures to this file")
    given = parser.parse_args()
    os.environ.setdefault("LANCEDB_LOG", "error")  # it warns of a deprecation at every query
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    corpus = load([given.datasets / name for name in given.names], given.passages, given.questions)
    model = EmbeddedProfile().embeddings()
    with ExitStack() as stack:
        if given.multi_query:
            rows, base = multi_query_rows(corpus, model), "one query"
        else:
            work = Path(tempfile.mkdtemp(prefix="hybrid-speed-"))
            stack.callback(shutil.rmtree, work, ignore_errors=True)
            rows, base = hybrid_rows(corpus, model, work), "ours"
        medians = measure(rows, list(corpus.queries))
    print(f"{len(corpus.documents)} passages, {len(corpus.queries)} questions, k = {K}, medians")
    print(f"{'':<58}{'ms':>8}{'ratio':>8}{'CPU ms':>8}{'ratio':>8}")
    figures = []
    for name, (clock, processor) in medians.items():
        of = base
        if base == "ours" and name.endswith("embedded"):
            of = "ours, query embedded"
        ratios = [value / unit for value, unit in zip(medians[name], medians[of])]
        print(f"{name:<58}{clock:>8.2f}{ratios[0]:>8.2f}{processor:>8.2f}{ratios[1]:>8.2f}")
        figures.append({"row": name, "milliseconds": clock, "processor_milliseconds": processor,
                        "ratio": ratios[0], "ratio_to": of})  # fmt: skip
    if given.json:
        write_figures(given.json, {"passages": len(corpus.documents), "k": K, "rows": figures})


if __name__ == "__main__":
    main()
