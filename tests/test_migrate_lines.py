"""Each line that `rag migrate` names is one of the files as they lie there."""

from __future__ import annotations

import json
from pathlib import Path

from test_migrate_project import notebook, put

from ragbook.migrate.findings import Finding
from ragbook.migrate.report import text_lines
from ragbook.migrate.result import Migration
from ragbook.migrate.run import migrate

CODE = """\
from langchain.retrievers import BM25Retriever, EnsembleRetriever, MultiQueryRetriever
from langchain.chains import LLMChain

keywords = BM25Retriever.from_texts(["a"])
both = EnsembleRetriever(retrievers=[keywords, keywords], weights=[0.5, 0.5])
chain = LLMChain(llm=llm, prompt=prompt)
more = MultiQueryRetriever(retriever=keywords, llm_chain=chain)
"""
FAILS = """\
from langchain.retrievers import BM25Retriever, EnsembleRetriever
from langchain.vectorstores import Milvus

keywords = BM25Retriever.from_texts(["a"])
both = EnsembleRetriever(retrievers=[keywords, keywords], weights=[0.5, 0.5])
"""
TWO = """\
from langchain.retrievers import BM25Retriever, MergerRetriever

both = MergerRetriever(retrievers=[BM25Retriever.from_texts(["a"])])
"""


def text_at(root: Path, one: Finding) -> str:
    file = root / one.file
    if one.cell is None:
        return file.read_text().splitlines()[one.line - 1]
    cell = json.loads(file.read_text())["cells"][one.cell - 1]
    return "".join(cell["source"]).splitlines()[one.line - 1]


def left(result: Migration) -> list[tuple[str, str]]:
    return [(one.old.rpartition(".")[2], text_at(result.path, one)) for one in result.left]


LEFT = [
    ("MultiQueryRetriever", "from langchain_classic.retrievers import MultiQueryRetriever"),
    ("LLMChain", "from langchain_classic.chains import LLMChain"),
    ("MultiQueryRetriever", "more = MultiQueryRetriever(retriever=keywords, llm_chain=chain)"),
]


def test_what_is_left_has_the_lines_of_the_rewritten_file(tmp_path: Path) -> None:
    put(tmp_path, {"a.py": CODE})
    result = migrate(tmp_path, write=True, force=True)
    assert sorted(left(result)) == sorted(LEFT)


def test_the_lines_of_reasons_move_along(tmp_path: Path) -> None:
    put(tmp_path, {"a.py": CODE})
    before = migrate(tmp_path)
    after = migrate(tmp_path, write=True, force=True)
    (use,) = (one.line for one in after.left if one.kind == "use")
    assert use == len((tmp_path / "a.py").read_text().splitlines())
    (why,) = {one.why for one in after.left if one.old.endswith("MultiQueryRetriever")} - {
        one.why for one in before.left
    }
    assert why.startswith(f"line {use}: ")


def test_the_lines_of_another_file_move_along(tmp_path: Path) -> None:
    building = (
        "from langchain.retrievers import BM25Retriever\nr = BM25Retriever.from_texts(['a'])\n"
    )
    using = f"{TWO}from a import r\nimport pickle\npickle.dumps(r)\n"
    put(tmp_path, {"a.py": building, "b.py": using})
    result = migrate(tmp_path, write=True, force=True)
    (why,) = {one.why for one in result.left if one.file == "a.py" and "b.py:" in one.why}
    line = int(why.partition("b.py:")[2].partition(")")[0])
    assert "pickle.dumps" in (tmp_path / "b.py").read_text().splitlines()[line - 1]


def test_what_is_left_in_a_notebook_has_the_lines_of_its_cells(tmp_path: Path) -> None:
    head, body = CODE.split("\n\n")
    put(tmp_path, {"a.ipynb": notebook(head, body)})
    result = migrate(tmp_path, write=True, force=True)
    assert sorted(left(result)) == sorted(LEFT)


def test_what_fails_has_the_lines_of_the_file_before_it_is_written_and_after(
    tmp_path: Path,
) -> None:
    put(tmp_path, {"a.py": FAILS})
    for write in (False, True):
        result = migrate(tmp_path, write=write, force=True)
        (one,) = result.failing
        assert text_at(tmp_path, one) == "from langchain.vectorstores import Milvus"


def test_a_name_that_is_left_for_one_reason_says_it_once(tmp_path: Path) -> None:
    code = (
        "from langchain.retrievers import ContextualCompressionRetriever\n"
        "r = ContextualCompressionRetriever(base_compressor=c, base_retriever=b)\n"
        "r.invoke('q', top_k=3)\n"
    )
    told = list(text_lines(migrate(put(tmp_path, {"a.py": code}))))
    (why,) = (line for line in told if line.startswith("      why: "))
    assert why.startswith("      why: line 3 gives top_k to a search")


def test_a_reason_does_not_repeat_the_line_of_its_place(tmp_path: Path) -> None:
    code = "from langchain_community.retrievers import TFIDFRetriever\n"
    put(tmp_path, {"a.py": f"{code}\nr = TFIDFRetriever.load_local('index')\n"})
    (one,) = (one for one in migrate(tmp_path).left if one.kind == "import")
    assert one.line == 1
    assert "line 1" not in one.why
