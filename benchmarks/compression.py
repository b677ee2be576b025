"""How much of the context each compressor leaves, and how often the answer is still in it.

uv run benchmarks/compression.py --json benchmarks/results/compression.json

The hybrid pattern finds five passages for each question. Only questions whose right answers these
passages hold are counted, as nothing else can be lost. "kept" is the share of the passages'
characters that a compressor leaves, "answers" the share of the questions whose right answers, all
the strings of them, it leaves. What one loses by taking fewer passages stands beside it.

Then parent documents: pieces of several sizes are searched by dense search, and either they or the
passages around them are returned.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from langchain_core.documents import BaseDocumentCompressor, Document
from langchain_core.output_parsers import StrOutputParser
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import RunnableLambda
from langchain_core.stores import InMemoryStore
from langchain_text_splitters import RecursiveCharacterTextSplitter
from methods import write_figures
from options import output_file
from tqdm import tqdm

from ragbook.chains import PROMPT, format_context
from ragbook.collection import Collection, load_question_set
from ragbook.evaluation import difference, holds_all, score
from ragbook.exact import ExactVectorStore
from ragbook.lab import index
from ragbook.patterns import Patterns
from ragbook.profiles import EmbeddedProfile
from retrievers.compressors import CrossEncoderFilter, EmbeddingsFilter, SentenceWindow
from retrievers.dense import DenseRetriever
from retrievers.llm_compressors import LLMExtractor
from retrievers.parent_document import ParentDocumentRetriever, split_documents

PASSAGES = 5
"""What the compressors get."""
COUNTS = (1, 2, 3, 4)
SENTENCES = (1, 2, 4, 8, 16)
SIZES = (100, 200, 400)
"""Characters of the pieces that are searched for parent documents."""
RETURNED = 3
"""Documents that a parent or piece retriever hands on."""

Cut = Callable[[Sequence[Document], str], Sequence[Document]]


def compressors(profile: EmbeddedProfile, patterns: Patterns) -> dict[str, dict[int, Cut]]:
    """Return what is measured: name of the line to setting to what shortens the passages."""
    embeddings = patterns.vectorstore.embeddings  # remembers what it has embedded
    assert embeddings is not None
    model = profile.cross_encoder(patterns.texts)
    scorers: dict[str, dict[str, Any]] = {
        "embeddings": {"embeddings": embeddings},
        "late interaction": {"cross_encoder": model},
    }
    lines: dict[str, dict[int, Cut]] = {
        "fewer passages": {n: lambda found, query, n=n: found[:n] for n in COUNTS},  # type: ignore[misc]
        "EmbeddingsFilter": {
            n: EmbeddingsFilter(embeddings=embeddings, top_n=n).compress_documents for n in COUNTS
        },
        "CrossEncoderFilter": {
            n: CrossEncoderFilter(cross_encoder=model, top_n=n).compress_documents for n in COUNTS
        },
    }
    for name, scorer in scorers.items():
        for window in (0, 1):
            lines[f"SentenceWindow, {name}, ±{window}"] = {
                n: SentenceWindow(**scorer, top_n=n, window=window).compress_documents
                for n in SENTENCES
            }
    return lines


def extractor(profile: EmbeddedProfile) -> BaseDocumentCompressor:
    """Return the extractor over the model that quotes, which reads only the book's own prompt."""

    def filled(asked: Mapping[str, str]) -> Any:
        passage = Document(page_content=asked["context"])
        return PROMPT.invoke({"question": asked["question"], "context": format_context([passage])})

    chain = RunnableLambda(filled) | profile.chat_model() | StrOutputParser()
    return LLMExtractor(llm=chain, prompt=None)


def characters(documents: Sequence[Document]) -> int:
    """Return how long documents are together."""
    return sum(len(document.page_content) for document in documents)


def answered(documents: Sequence[Document], answers: Sequence[str]) -> bool:
    """Tell whether documents together hold all strings of a right answer."""
    return holds_all("\n".join(document.page_content for document in documents), answers)


def measured(
    cut: Cut, found: Mapping[str, Sequence[Document]], collection: Collection, label: str
) -> dict[str, Any]:
    """Return the mean share of characters kept, and the share of answers that stay."""
    kept, stayed = {}, {}
    for name, documents in tqdm(found.items(), label, leave=False, disable=None):
        left = cut(documents, collection.queries[name])
        kept[name] = characters(left) / characters(documents)
        stayed[name] = float(answered(left, collection.answers[name]))
    lost = difference(stayed, dict.fromkeys(stayed, 1.0))
    return {
        "kept": statistics.fmean(kept.values()),
        "answers": statistics.fmean(stayed.values()),
        "low": 1 + lost["low"],
        "high": 1 + lost["high"],
    }


def parent_retrievers(
    collection: Collection, patterns: Patterns
) -> Iterator[tuple[str, int, str, BaseRetriever]]:
    """Yield what is searched, in characters, and what is returned, with the retriever."""
    size = round(statistics.fmean(len(d.page_content) for d in collection.documents))
    yield "passages", size, "passages", patterns.dense(len(collection.documents))
    embeddings = patterns.vectorstore.embeddings
    assert embeddings is not None
    for size in SIZES:
        splitter = RecursiveCharacterTextSplitter(
            chunk_size=size, chunk_overlap=0, separators=["\n", ". ", " "]
        )
        parents, children = split_documents(collection.documents, splitter)
        vectors = embeddings.embed_documents([child.page_content for child in children])
        store = ExactVectorStore(children, vectors, embeddings)
        pieces = DenseRetriever(vectorstore=store, k=len(children))
        yield "pieces", size, "pieces", pieces
        docstore = InMemoryStore()
        docstore.mset([(str(parent.id), parent) for parent in parents])
        around = ParentDocumentRetriever(
            base_retriever=pieces, docstore=docstore, top_n=len(parents)
        )
        yield "pieces", size, "parents", around


def parents_measured(
    retriever: BaseRetriever, returned: str, collection: Collection
) -> tuple[dict[str, Any], dict[str, float]]:
    """Return quality over the ranking, and length and answers of the documents handed on.

    The second part is each question's nDCG@10. Pieces have none: the judgements are about passages.
    """
    run, lengths, held = {}, [], {}
    for name, query in collection.queries.items():
        documents = retriever.invoke(query)
        run[name] = [str(document.id) for document in documents]
        handed_on = documents[:RETURNED]
        lengths.append(characters(handed_on))
        if name in collection.answers:
            held[name] = float(answered(handed_on, collection.answers[name]))
    row: dict[str, Any] = {
        "characters": statistics.fmean(lengths),
        "answers": statistics.fmean(held.values()),
    }
    if returned == "pieces":
        return row, {}
    values = score(run, collection.qrels, ("nDCG@10", f"R@{RETURNED}"))
    row |= {metric: statistics.fmean(of.values()) for metric, of in values.items()}
    return row, values["nDCG@10"]


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=Path("data"), help="the book's own folder")
    parser.add_argument(
        "--extracted", type=int, default=30, help="about how many questions the model reads"
    )
    parser.add_argument("--json", type=output_file, help="also write the figures to this file")
    arguments = parser.parse_args()
    collection = load_question_set(arguments.data, arguments.data / "questions.jsonl")
    profile = EmbeddedProfile()
    patterns = index(collection, profile, progress=True)
    hybrid = patterns.retriever("hybrid", PASSAGES)
    found = {name: hybrid.invoke(collection.queries[name]) for name in collection.answers}
    found = {n: d for n, d in found.items() if answered(d, collection.answers[n])}
    print(f"{len(found)} of {len(collection.answers)} questions have their answer in {PASSAGES}")
    lines: dict[str, list[dict[str, Any]]] = {}
    for name, settings in compressors(profile, patterns).items():
        lines[name] = []
        for setting, cut in settings.items():
            row = {"setting": setting, **measured(cut, found, collection, f"{name} {setting}")}
            lines[name].append(row)
            print(f"{name:40} {setting:>2}  {row['kept']:.2f}  {row['answers']:.2f}", flush=True)
    sample = dict(list(found.items())[:: max(1, len(found) // arguments.extracted)])
    read = measured(extractor(profile).compress_documents, sample, collection, "LLMExtractor")
    extracted = {"questions": len(sample), **read}
    print(f"LLMExtractor, {len(sample)} questions: {read['kept']:.2f}  {read['answers']:.2f}")
    parents: list[dict[str, Any]] = []
    passages: dict[str, float] = {}
    for searched, size, returned, retriever in parent_retrievers(collection, patterns):
        row = {"searched": searched, "size": size, "returned": returned}
        figures, values = parents_measured(retriever, returned, collection)
        row |= figures
        passages = passages or values
        if returned == "parents":
            row["against passages"] = difference(values, passages)
        parents.append(row)
        print(row, flush=True)
    if arguments.json:
        write_figures(
            arguments.json,
            {
                "passages": PASSAGES,
                "questions": len(found),
                "characters": statistics.fmean(map(characters, found.values())),
                "compressors": lines,
                "extractor": extracted,
                "returned": RETURNED,
                "parents": parents,
            },
        )


if __name__ == "__main__":
    main()
