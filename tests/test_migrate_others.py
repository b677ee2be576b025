"""`rag migrate` and attributes that another file reads of an object that is built elsewhere."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_migrate_project import written

BOTH_BUILT = """from langchain.retrievers import ParentDocumentRetriever
from langchain_community.vectorstores import FAISS
vectors = FAISS.from_texts(t, e)
"""
PARENTS = "ParentDocumentRetriever(vectorstore=vectors, docstore=d, child_splitter=c)"


@pytest.mark.parametrize(
    ("build", "use"),
    [
        (f"parents = {PARENTS}\n", "from app import parents\nparents.docstore.mget(['1'])\n"),
        (f"def build():\n    return {PARENTS}\n", "import app\napp.build().docstore.mget(['1'])\n"),
        (
            f"def build():\n    return {PARENTS}\n",
            "from app import build\nr = build()\nr.docstore.mget(['1'])\n",
        ),
    ],
)
def test_an_attribute_of_an_object_of_another_class_keeps_no_class(
    tmp_path: Path, build: str, use: str
) -> None:
    assert not written(tmp_path, {"app.py": BOTH_BUILT + build, "test_app.py": use}).left


@pytest.mark.parametrize(
    ("build", "use"),
    [
        ("", "from app import vectors\nvectors.docstore.search('1')\n"),
        (
            f"def build(x):\n    return {PARENTS} if x else vectors\n",
            "import app\napp.build(0).docstore\n",
        ),
        (
            f"both = {PARENTS}\nboth = vectors\n",
            "from app import both\nboth.docstore.search('1')\n",
        ),
        ("def build():\n    return vectors\n", "import app\napp.build().docstore\n"),
        (
            f"one = {PARENTS}\nfor one in (vectors,): ...\n",
            "from app import one\none.docstore.search('1')\n",
        ),
        ("def build():\n    return FAISS.from_texts(t, e)\n", "import app\napp.build().docstore\n"),
    ],
)
def test_of_what_is_or_may_be_its_own_object_it_does(tmp_path: Path, build: str, use: str) -> None:
    result = written(tmp_path, {"app.py": BOTH_BUILT + build, "test_app.py": use})
    assert any(".docstore" in one.why for one in result.left if "FAISS" in one.old)
