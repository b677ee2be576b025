"""Programs put together from parts do the same after `rag migrate` as before, in the same order.

Each program imports one retired class in one of several ways, builds an object of it in one of many
places, and searches with it. It is run as it is, with langchain-classic and langchain-community,
and as the command has rewritten it.
"""

from __future__ import annotations

import ast
import textwrap
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from test_migrate_runs import TEXTS, ByLength, Directions

from ragbook.migrate.imports import read_code
from ragbook.migrate.rewrite import Rewritten, rewrite_source
from ragbook.migrate.survey import read_project
from ragbook.migrate.table import is_old

COMMON = """
import asyncio, dataclasses, functools, typing
from langchain_core.documents import Document
from langchain_core.language_models import FakeListChatModel
from langchain_core.stores import InMemoryStore
from langchain_core.vectorstores import InMemoryVectorStore
from langchain_community.retrievers import BM25Retriever as Words
from pydantic import BaseModel, ConfigDict

docs = [Document(page_content=t, metadata={"n": n, "key": str(n)}) for n, t in enumerate(TEXTS)]
embeddings = Directions(size=32)
store = InMemoryVectorStore.from_documents(docs, embeddings)
near = store.as_retriever(search_kwargs={"k": 3})
words = Words.from_documents(docs, k=2, preprocess_func=str.split)
kept = InMemoryStore()
kept.mset([(str(n), document) for n, document in enumerate(docs)])
def says(*texts): return FakeListChatModel(responses=list(texts))
"""


@dataclass(frozen=True)
class Built:
    """A class: where it is, how it is built, and what finds something with the object x."""

    module: str
    name: str
    method: str
    arguments: str
    find: str = "x.invoke('shallow water')"

    def code(self, access: str) -> str:
        method = f".{self.method}" if self.method else ""
        return f"{access}{method}({self.arguments})"


CLASSIC = "langchain_classic.retrievers"
COMPRESSORS = f"{CLASSIC}.document_compressors"
COMMUNITY = "langchain_community"
IN_ORDER_OF_N = "sorted(x.compress_documents(docs, 'water'), key=lambda d: d.metadata['n'])"
CLASSES = [
    Built(f"{COMMUNITY}.retrievers", "BM25Retriever", "from_documents", "docs, k=1"),
    Built(CLASSIC, "EnsembleRetriever", "", "retrievers=[words, near], weights=[0.7, 0.3], c=10"),
    Built(f"{CLASSIC}.ensemble", "EnsembleRetriever", "", "retrievers=[words, near], id_key='n'"),
    Built(CLASSIC, "MergerRetriever", "", "retrievers=[words]"),
    Built(
        f"{CLASSIC}.multi_query",
        "MultiQueryRetriever",
        "from_llm",
        "words, says('a heron'), include_original=True",
        "sorted(x.invoke('shallow water'), key=lambda d: d.metadata['n'])",
    ),
    Built(
        f"{CLASSIC}.re_phraser", "RePhraseQueryRetriever", "from_llm", "words, says('seal pumps')"
    ),
    Built(
        f"{CLASSIC}.multi_vector",
        "MultiVectorRetriever",
        "",
        "vectorstore=store, docstore=kept, id_key='key'",
    ),
    Built(f"{COMMUNITY}.retrievers", "TFIDFRetriever", "from_documents", "docs, k=1"),
    Built(f"{COMMUNITY}.retrievers.knn", "KNNRetriever", "from_texts", "TEXTS, embeddings, k=2"),
    Built(
        f"{COMMUNITY}.vectorstores",
        "FAISS",
        "from_documents",
        "docs, embeddings",
        "x.similarity_search('a heron', k=3)",
    ),
    Built(COMPRESSORS, "EmbeddingsFilter", "", "embeddings=embeddings, k=3", IN_ORDER_OF_N),
    Built(COMPRESSORS, "LLMChainFilter", "from_llm", "says('YES', 'NO')", IN_ORDER_OF_N),
    Built(
        COMPRESSORS,
        "LLMChainExtractor",
        "from_llm",
        "says('pumps need a new seal kit')",
        "x.compress_documents([docs[2]], 'seal')",
    ),
    Built(COMPRESSORS, "CrossEncoderReranker", "", "model=ByLength(), top_n=2", IN_ORDER_OF_N),
    Built(
        f"{COMMUNITY}.document_transformers",
        "EmbeddingsRedundantFilter",
        "",
        "embeddings=embeddings",
        "x.transform_documents(docs)",
    ),
]

IMPORTS = {
    "its name": ("from {module} import {name}", "{name}"),
    "another name": ("from {module} import {name} as Old", "Old"),
    "a path": ("import {module}", "{module}.{name}"),
    "a module": ("import {module} as old", "old.{name}"),
    "a module of a package": ("from {package} import {last}", "{last}.{name}"),
    "a star": ("from {module} import *", "{name}"),
    "a class that may be missing": (
        "try:\n    from {module} import {name}\nexcept ImportError:\n    {name} = None",
        "{name}",
    ),
    "with a comment": ("from {module} import (\n    {name},  # old\n)", "{name}"),
}

PLACES = {
    "a name": "x = NEW",
    "a hint": "x: CLASS = NEW",
    "a hint in a string": "x: 'CLASS' = NEW",
    "a function": "def f() -> CLASS:\n    return NEW\nx = f()",
    "a method": "class A:\n    def __init__(self):\n        self.x = NEW\nx = A().x",
    "a class": "class A:\n    x = NEW\nx = A.x",
    "a comprehension": "x = [NEW for _ in range(1)][0]",
    "a comprehension in a class": "class A:\n    x = {n: NEW for n in range(1)}\nx = A.x[0]",
    "a lambda": "x = (lambda: NEW)()",
    "a default": "def f(r=NEW, *, s=2):\n    return r\nx = f()",
    "a decorator": "def keep(r):\n    return lambda f: r\n@keep(NEW)\ndef x(): ...",
    "a walrus": "if (x := NEW) is not None:\n    pass",
    "a match": "match NEW:\n    case r:\n        x = r",
    "a class pattern": "match NEW:\n    case CLASS() as x:\n        pass",
    "a try": "try:\n    x = NEW\nfinally:\n    pass",
    "a coroutine": "async def f():\n    return NEW\nx = asyncio.run(f())",
    "a dataclass": (
        "@dataclasses.dataclass\nclass A:\n"
        "    r: CLASS = dataclasses.field(default_factory=lambda: NEW)\nx = A().r"
    ),
    "a field of pydantic": (
        "class A(BaseModel):\n    model_config = ConfigDict(arbitrary_types_allowed=True)\n"
        "    r: CLASS | None = None\nx = A(r=NEW).r"
    ),
    "a global name": "def f():\n    global x\n    x = NEW\nf()",
    "a nonlocal name": (
        "def f():\n    r = None\n    def g():\n        nonlocal r\n        r = NEW\n    g()\n"
        "    return r\nx = f()"
    ),
    "another name, and del": "y = NEW\nx = y\ndel y",
    "a tuple": "x, y = NEW, 1",
    "a dictionary": "d = {'r': NEW}\nx = d['r']",
    "a condition": "x = NEW if CLASS else None",
    "an f-string": 'x = NEW\nassert f"{NEW}"',
    "a with": "import contextlib\nwith contextlib.nullcontext(NEW) as x:\n    pass",
    "isinstance": "x = NEW\nassert isinstance(x, (CLASS, int))",
    "type": "x = NEW\nassert type(x) is CLASS or type(x) is not CLASS",
    "cast": "x = typing.cast('CLASS', NEW)",
    "a subclass": "class Mine(CLASS):\n    pass\nx = NEW",
    "another name of the class": "Other = CLASS\nx = OTHER",
    "a class that is passed on": "def f(cls):\n    return OTHER_CLS\nx = f(CLASS)",
    "a parameter of its name": "def f(NAME):\n    return NAME\nf(1)\nx = NEW",
    "a variable of its name": "def f():\n    NAME = 3\n    return NAME\nf()\nx = NEW",
    "an import in a function": "def f():\n    IMPORT_HERE\n    return NEW\nx = f()",
    "a use before the import": "def f():\n    return NEW\nIMPORT_HERE\nx = f()",
    "arguments that are unpacked": "x = UNPACKED",
    "a line an argument": "x = LINES",
    "a comment": "# NAME\nx = NEW  # a NAME",
    "a semicolon": "y = 1; x = NEW; z = 2",
    "a docstring": "def f():\n    '''Make a NAME.'''\n    return NEW\nx = f()",
    "old methods": "x = NEW\nask = getattr(x, 'invoke', None)",
}

FAR = {
    "a lambda with a name": "make = lambda: NEW\nx = make()",
    "a table of functions": "def f():\n    return NEW\nx = {'f': f}['f']()",
    "a table of lambdas": "x = {'f': lambda: NEW}.get('f')()",
    "a partial of a function": "def f(n):\n    return NEW\nx = functools.partial(f, 1)()",
    "a partial of the class": "x = functools.partial(MAKER, ARGUMENTS)()",
    "a default by name": "def f(*, r=NEW):\n    return r\nx = f()",
    "items of a comprehension": "d = {n: NEW for n in 'ab'}\nfor n, x in d.items():\n    pass",
    "a generator": "def f():\n    yield NEW\nx = next(f())",
    "a generator expression": "x, = (NEW for _ in range(1))",
    "a cached property": (
        "class A:\n    @functools.cached_property\n    def r(self):\n        return NEW\nx = A().r"
    ),
    "a property of a field": (
        "class A:\n    def __init__(self):\n        self._r = NEW\n"
        "    @property\n    def r(self):\n        return self._r\nx = A().r"
    ),
    "a cached function": "@functools.lru_cache\ndef f():\n    return NEW\nx = f()",
    "a decorator that keeps": (
        "kept_by = {}\ndef keep(f):\n    kept_by['f'] = f\n    return f\n"
        "@keep\ndef f():\n    return NEW\nx = kept_by['f']()"
    ),
    "a decorator with an argument": (
        "kept_by = {}\ndef keep(n):\n    def inner(f):\n        kept_by[n] = f\n"
        "        return f\n    return inner\n"
        "@keep('f')\ndef f():\n    return NEW\nx = kept_by['f']()"
    ),
    "a context manager": (
        "import contextlib\n@contextlib.contextmanager\ndef f():\n    yield NEW\n"
        "with f() as x:\n    pass"
    ),
    "a class of a context": (
        "class A:\n    def __enter__(self):\n        return NEW\n"
        "    def __exit__(self, *more): ...\nwith A() as x:\n    pass"
    ),
    "a factory of a field": (
        "@dataclasses.dataclass\nclass A:\n"
        "    r: object = dataclasses.field(default_factory=lambda: NEW)\nx = A().r"
    ),
    "a fixture": "def given(f):\n    return f()\n@given\ndef r():\n    return NEW\nx = r",
    "an injected parameter": (
        "def f():\n    return NEW\ndef g(r: typing.Annotated[object, f] = None):\n"
        "    return r\nx = g(f())"
    ),
    "a named tuple": "import collections\nx = collections.namedtuple('A', 'r s')(NEW, 1).r",
    "a namespace": "import types\na = types.SimpleNamespace(r=NEW)\nx = a.r",
    "a name among all": "y = NEW\nx = globals()['y']",
    "a thread": (
        "import concurrent.futures as c\nwith c.ThreadPoolExecutor() as p:\n"
        "    x = p.submit(lambda: NEW).result()"
    ),
    "a closure": ("def f():\n    r = NEW\n    def g():\n        return r\n    return g\nx = f()()"),
    "an attribute that is asked for": (
        "class A:\n    def __init__(self):\n        self.r = NEW\n"
        "    def f(self):\n        return getattr(self, 'r')\nx = A().f()"
    ),
    "an attribute of any name": (
        "class A:\n    def __getattr__(self, name):\n        return NEW\nx = A().r"
    ),
    "an object that is called": (
        "class A:\n    def __call__(self):\n        return NEW\nx = A()()"
    ),
    "a weak reference": "import weakref\ny = NEW\nx = weakref.ref(y)()",
    "a pattern": "match [NEW]:\n    case [x]:\n        pass",
    "keywords": "def f(**more):\n    return more['r']\nx = f(r=NEW)",
}
"""Places out of which the object comes again by a way that is followed with care, or not at all."""

USES = {
    "EnsembleRetriever": "x.c = x.c + 1\nused = x.c\n",
    "EmbeddingsFilter": "x.k = 2\nused = x.k\n",
    "MultiQueryRetriever": "used = type(x.llm_chain) is not None\n",
    "BM25Retriever": "used = [d.page_content for d in x.invoke('heron', k=9)]\n",
    "TFIDFRetriever": "used = len(x.batch(['heron'], k=9)[0])\n",
}
"""What differs here, of objects of some classes."""


def program(built: Built, how: str, where: str) -> str:
    form, access = IMPORTS[how]
    package, _, last = built.module.rpartition(".")
    given = {"module": built.module, "name": built.name, "package": package, "last": last}
    statement, access = form.format(**given), access.format(**given)
    place = PLACES[where] if where in PLACES else FAR[where]
    here = "IMPORT_HERE" in place
    if here and "*" in statement:  # only a module may have one
        statement, access = IMPORTS["its name"][0].format(**given), built.name
    indent = "    " if where == "an import in a function" else ""
    lines = built.arguments.replace(", ", ",\n    ") if "[" not in built.arguments else ""
    for mark, code in {
        "IMPORT_HERE": textwrap.indent(statement, indent).lstrip(),
        "MAKER": built.code(access).partition("(")[0],
        "ARGUMENTS": built.arguments,
        "OTHER_CLS": built.code("cls"),
        "OTHER": built.code("Other"),
        "UNPACKED": built.code(access).replace("(", "(*(), ", 1),
        "LINES": built.code(access).replace(built.arguments, f"\n    {lines},\n")
        if lines
        else built.code(access),
        "NEW": built.code(access),
        "CLASS": access,
        "NAME": built.name,
    }.items():
        place = place.replace(mark, code)
    use = USES.get(built.name, "") if where in FAR else ""
    return "\n".join([COMMON, "" if here else statement, place, f"{use}found = {built.find}\n"])


def everything() -> Iterator[tuple[Built, str, str]]:
    for built in CLASSES:
        for how in IMPORTS:
            for where in PLACES:
                yield built, how, where


def some() -> Iterator[tuple[Built, str, str]]:
    """One in 71, so that each class, way to import and place comes again and again."""
    for number, (built, how, where) in enumerate(everything()):
        if number % 71 == 0:
            yield built, how, where


def rewritten(code: str) -> Rewritten:
    file = Path("x.py")
    return rewrite_source(
        code, read_project([read_code(file, code)]).around(file, "retrievers"), "x.py"
    )


def old_names(code: str) -> set[str]:
    """What a program imports of the old packages."""
    found = set()
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.ImportFrom) and is_old(node.module or ""):
            names = [alias.name for alias in node.names]
            found.update(f"{node.module}.{n}" if n != "*" else str(node.module) for n in names)
        elif isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names if is_old(alias.name))
    return found


def outcome(code: str) -> list[str]:
    names: dict[str, Any] = {"TEXTS": TEXTS, "ByLength": ByLength, "Directions": Directions}
    names["__name__"] = "__main__"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exec(code, names)
    return [*[document.page_content for document in names["found"]], str(names.get("used"))]


def check(built: Built, how: str, where: str) -> bool:
    """Check one program; return whether anything of the class was rewritten."""
    before = program(built, how, where)
    new = rewritten(before)
    assert rewritten(new.text).text == new.text, new.text
    listed = {one.old for one in new.findings if not one.rewritten}
    for name in old_names(new.text):
        assert any(one == name or one.startswith(f"{name}.") for one in listed), (name, new.text)
    assert outcome(before) == outcome(new.text), new.text
    return built.module not in new.text


@pytest.mark.parametrize("built", CLASSES, ids=lambda one: one.name)
def test_a_program_of_parts_does_the_same(built: Built) -> None:
    done = [check(*parts) for parts in some() if parts[0] is built]
    assert any(done)


USED = [built for built in CLASSES if built.name in USES]


@pytest.mark.parametrize("where", FAR)
def test_what_differs_is_seen_wherever_the_object_comes_from(where: str) -> None:
    """One way of importing is as good as another, for what an object is used for."""
    number = list(FAR).index(where)
    for built in USED[number % 2 :: 2]:
        check(built, "its name", where)


def test_an_object_is_followed_through_the_usual_places() -> None:
    moved = {
        where
        for where in ("a name", "a hint", "a method", "a class", "a walrus")
        if "RRFEnsembleRetriever" in rewritten(program(USED[1], "its name", where)).text
    }
    assert moved == {"a name", "a hint", "a method", "a class", "a walrus"}
