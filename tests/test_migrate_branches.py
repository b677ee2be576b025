"""A `try` or an `if` whose branches import the same after the rewrite becomes one import."""

from __future__ import annotations

import textwrap

import pytest

from ragbook.migrate.findings import Finding
from ragbook.migrate.plan import Surroundings
from ragbook.migrate.rewrite import rewrite_source


def rewritten(code: str) -> tuple[str, list[Finding]]:
    around = Surroundings(classic=True)
    new = rewrite_source(textwrap.dedent(code).lstrip(), around)
    again = rewrite_source(new.text, around)
    assert again.text == new.text
    return new.text, [one for one in new.findings if not one.rewritten and not one.for_now]


ONE = {
    "the old place first": """
        try:
            from langchain.retrievers import MergerRetriever
        except ImportError:
            from langchain_classic.retrievers import MergerRetriever
    """,
    "three places": """
        try:
            from langchain_classic.retrievers import MergerRetriever
        except ImportError:
            try:
                from langchain.retrievers import MergerRetriever
            except ImportError:
                from langchain.retrievers.merger_retriever import MergerRetriever
    """,
    "two kinds of errors": """
        try:
            from langchain.retrievers import MergerRetriever
        except ModuleNotFoundError:
            from langchain_classic.retrievers import MergerRetriever
        except Exception as error:
            from langchain_classic.retrievers.merger_retriever import MergerRetriever
    """,
    "in one line": """
        try: from langchain.retrievers import MergerRetriever
        except ImportError: from langchain_classic.retrievers import MergerRetriever
    """,
    "a version": """
        if VERSION < (0, 3):
            from langchain.retrievers import MergerRetriever
        elif version("langchain").startswith("0."):
            from langchain.retrievers.merger_retriever import MergerRetriever
        else:
            from langchain_classic.retrievers import MergerRetriever
    """,
    "modules": """
        try:
            import langchain.retrievers as r
        except ImportError:
            import langchain_classic.retrievers as r
        m = r.MergerRetriever(retrievers=[a])
    """,
}


@pytest.mark.parametrize("code", ONE.values(), ids=ONE)
def test_where_both_branches_are_the_same_one_import_is_left(code: str) -> None:
    text, left = rewritten(code + "    m = MergerRetriever(retrievers=[a])\n")
    first, *rest = text.splitlines()
    assert first == "from retrievers.merger import MergerRetriever"
    assert all(line.startswith("m = ") for line in rest)
    assert not [one for one in left if one.kind == "import"]


def test_what_is_imported_from_langchain_classic_for_now_is_imported_once() -> None:
    code = """
        try:
            from langchain.chains import LLMChain
        except ImportError:
            from langchain_classic.chains import LLMChain
        """
    assert rewritten(code)[0] == "from langchain_classic.chains import LLMChain\n"


def test_a_new_place_that_the_file_knows_already_is_enough() -> None:
    code = """
        def f():
            try:
                from langchain_core.documents import Document
            except ImportError:
                from langchain.schema import Document
            return Document
        """
    assert rewritten(code)[0] == (
        "def f():\n    from langchain_core.documents import Document\n    return Document\n"
    )


def test_comments_stay_and_what_follows_when_all_went_well_is_done() -> None:
    code = """
        # Where it is.
        try:  # as of 0.3
            from langchain.schema import Document  # noqa: F401
        except ImportError:  # pragma: no cover
            # older
            from langchain_core.documents import Document
        else:
            found = True
        """
    assert rewritten(code)[0] == (
        "# Where it is.\n# as of 0.3\n# older\n"
        "from langchain_core.documents import Document  # noqa: F401\nfound = True\n"
    )


LEFT = {
    "it sets something": """
        try:
            from langchain.schema import Document
            NEW = False
        except ImportError:
            from langchain_core.documents import Document
            NEW = True
    """,
    "it does something at last": """
        try:
            from langchain.schema import Document
        except ImportError:
            from langchain_core.documents import Document
        finally:
            done()
    """,
    "what it asks may do something": """
        if set_up():
            from langchain.schema import Document
        else:
            from langchain_core.documents import Document
    """,
}


@pytest.mark.parametrize("code", LEFT.values(), ids=LEFT)
def test_where_more_than_imports_would_go_both_are_left_with_the_reason(code: str) -> None:
    text, left = rewritten(code)
    assert text.count("from langchain_core.documents import Document") == 2
    (one,) = left
    assert (one.line, one.old) == (1, "langchain.schema.Document")
    assert one.why.startswith("its branches import the same now, and do something else, too")


OTHER = {
    "nothing instead": """
        try:
            from langchain_core.documents import Document
        except ImportError:
            Document = None
    """,
    "another class": """
        try:
            from langchain_core.documents import Document
        except ImportError:
            from mine import Document
    """,
    "only if": """
        if VERSION < 1:
            from langchain_core.documents import Document
    """,
}


@pytest.mark.parametrize("code", OTHER.values(), ids=OTHER)
def test_branches_that_differ_stay(code: str) -> None:
    old = textwrap.dedent(code).lstrip()
    before = old.replace("langchain_core.documents", "langchain.schema")
    assert rewritten(before) == (old, [])


def test_branches_in_which_nothing_is_rewritten_stay_as_they_are() -> None:
    code = "from langchain.schema import Document\n{}"
    branches = "try:\n    import a\nexcept ImportError:\n    import a\n"
    assert rewritten(code.format(branches))[0].endswith(branches)
