"""The copy box: how to take a retriever into a project, computed from its file at build time."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from docutils import nodes
from docutils.statemachine import StringList
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from ragbook.copying import copy_retrievers, retriever_files

TARGET = "src/app/retrievers"
"""The folder that the commands name, as in the README."""

PACKAGE = "app.retrievers"


def copy_box(name: str, source: str) -> str:
    """Write the copy box of a retriever file as MyST.

    Args:
        name: The file's name without its ending, such as `bm25`.
        source: The path of the folder of retrievers, as seen from the page.
    """
    file = retriever_files()[name]
    with TemporaryDirectory() as folder:
        report = copy_retrievers([name], Path(folder))
    others = [f"[`{sibling}.py`]({sibling}.md)" for sibling in file.siblings]
    needs = f", and {' and '.join(others)}, which it imports" if others else ""
    imports = (
        "Examples here import from this repository's package; import your copy from its file:\n\n"
        f"```python\nfrom {PACKAGE}.{name} import {file.main}\n```\n"
        if file.main
        else ""
    )
    return f"""\
:::::{{div}} copy-box

Copy it into your project:

```bash
uv run rag copy {name} --to {TARGET}
```

This writes `{name}.py`{needs}. Add the packages:

```bash
{report.uv_add}
```

{imports}

::::{{dropdown}} Read the file `{name}.py`
```{{literalinclude}} {source}/{name}.py
:language: python
```
::::

:::::
"""


class CopyBox(SphinxDirective):
    """A directive with the name of a retriever file as its argument."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Parse the box's text where the directive stands."""
        name = self.arguments[0].strip()
        if name not in retriever_files():
            raise self.error(f"copybox: there is no file {name}.py among the retrievers")
        up = "../" * (self.env.docname.count("/"))
        text = copy_box(name, f"{up}source-code/retrievers")
        node = nodes.Element()
        lines = StringList(text.splitlines(), self.env.doc2path(self.env.docname))
        self.state.nested_parse(lines, self.content_offset, node)
        self.env.note_dependency(str(retriever_files()[name].path))
        return node.children


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the directive."""
    app.add_directive("copybox", CopyBox)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
