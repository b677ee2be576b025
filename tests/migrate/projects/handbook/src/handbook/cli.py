import sys

from handbook import build_handbook


def main(argv=None):
    words = sys.argv[1:] if argv is None else argv
    book = build_handbook()
    print(", ".join(book.ask(" ".join(words) or "who keeps the keys of the office")))
    print(type(book.retriever.base_retriever).__name__.endswith("EnsembleRetriever"))


if __name__ == "__main__":
    main([])
