"""What `rag migrate` does with the names of loggers, which are the names of old modules."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_migrate_project import notebook, put, written

from ragbook.migrate.notebooks import code_cells
from ragbook.migrate.packages import imports_of
from ragbook.migrate.run import migrate

GIVEN = [
    'logging.getLogger("{name}")',
    'logging.getLogger(name="{name}").setLevel("INFO")',
    'caplog.set_level("INFO", logger="{name}")',
    'caplog.set_level("INFO", "{name}")',
    'case.assertLogs(logger="{name}")',
    'self.assertNoLogs("{name}")',
    'logging.config.dictConfig({{"loggers": {{"{name}": {{"level": "INFO"}}}}}})',
    'logging.config.dictConfig(dict(loggers={{"{name}": {{}}}}))',
    'CONFIG["loggers"]["{name}"] = {{}}',
    'assert record.name == "{name}"',
    'NAME = "{name}"\nlogging.getLogger(NAME)',
    'for one in ("app", "{name}"):\n    logging.getLogger(one)',
    'found = [logging.getLogger(one) for one in ["{name}"]]',
]
"""How a program names a logger."""
QUERIES = "langchain.retrievers.multi_query"
MANY = "from langchain.retrievers.multi_query import MultiQueryRetriever\n"
PACKAGE = {"app/__init__.py": "", "app/rag.py": MANY}


@pytest.mark.parametrize("code", GIVEN)
def test_a_logger_gets_the_copied_file_s_name_in_every_file(tmp_path: Path, code: str) -> None:
    other = code.format(name=QUERIES)
    result = written(
        tmp_path, {**PACKAGE, "tests/test_rag.py": other, "log.ipynb": notebook(other)}
    )
    now = code.format(name="app.retrievers.multi_query")
    assert (tmp_path / "tests/test_rag.py").read_text() == now
    assert now in [cell.source for cell in code_cells((tmp_path / "log.ipynb").read_text())]
    assert result.removable == ["langchain"]
    assert result.exit_code == 0


def test_where_the_app_is_moved_already_its_logger_is_renamed_in_a_new_test(tmp_path: Path) -> None:
    written(tmp_path, PACKAGE)
    code = f'logging.getLogger("{QUERIES}")\n'
    written(tmp_path, {"test_new.py": code})
    assert "app.retrievers.multi_query" in (tmp_path / "test_new.py").read_text()


def test_a_logger_above_others_is_renamed_where_all_below_it_are(tmp_path: Path) -> None:
    code = 'logging.getLogger("langchain.retrievers")\n'
    written(tmp_path / "a", {**PACKAGE, "log.py": code})
    assert (tmp_path / "a/log.py").read_text() == code.replace("langchain", "app")
    left = MANY + "class Own(MultiQueryRetriever): ...\n"
    merger = "from langchain.retrievers import MergerRetriever\n"
    files = {**PACKAGE, "app/rag.py": left, "app/other.py": merger, "log.py": code}
    written(tmp_path / "b", files, classic=False)
    assert (tmp_path / "b/log.py").read_text() == code


def test_a_logger_of_a_class_that_is_left_is_left_or_goes_to_the_bridge(tmp_path: Path) -> None:
    code = f'logging.getLogger("{QUERIES}")\n'
    files = {"app.py": MANY + "class Own(MultiQueryRetriever): ...\n", "log.py": code}
    result = written(tmp_path / "a", files, classic=False)
    assert (tmp_path / "a/log.py").read_text() == code
    (why,) = [one.why for one in result.left if one.file == "log.py"]
    assert why.startswith("it names a logger")
    written(tmp_path / "b", files, classic=True)
    assert '"langchain_classic.retrievers.multi_query"' in (tmp_path / "b/log.py").read_text()


def test_a_logger_of_one_name_is_left_where_its_class_is_moved_in_one_file_only(
    tmp_path: Path,
) -> None:
    code = f'logging.getLogger("{QUERIES}")\n'
    left = MANY + "class Own(MultiQueryRetriever): ...\n"
    written(tmp_path, {**PACKAGE, "app/own.py": left, "log.py": code}, classic=False)
    assert (tmp_path / "log.py").read_text() == code


@pytest.mark.parametrize("code", GIVEN)
def test_the_name_of_a_logger_is_no_import(code: str) -> None:
    assert not imports_of("langchain", code.format(name=QUERIES))
    assert not imports_of("langchain", "%%time\n" + code.format(name="langchain"))
    assert imports_of("langchain", f'importlib.import_module("{QUERIES}")')


def test_a_logger_needs_no_package(tmp_path: Path) -> None:
    code = f'logging.getLogger("{QUERIES}")\n'
    result = migrate(
        put(tmp_path, {"log.py": code, "requirements.txt": "langchain\n"}), classic=True
    )
    assert [one.for_now for one in result.left] == ["langchain_classic.retrievers.multi_query"]
    assert result.removable == ["langchain"]
    assert result.packages == []
