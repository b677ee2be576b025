"""Any folder of .txt and .md files becomes documents and passages, or one clear message."""

from __future__ import annotations

import json
import logging
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from langchain_core.documents import Document

from ragbook.corpus import (
    CorpusError,
    default_data_folder,
    load_documents,
    load_passages,
    load_questions,
    split_into_passages,
)

# Few characters, so that fences, headings, rules, blank lines and repeats come up often.
texts = st.text(alphabet="ab. \n\n#`-=>。\t\u3000é", max_size=120)
sizes = st.integers(1, 30)


def split(text: str, name: str = "a.txt", **kwargs: int) -> list[Document]:
    document = Document(id=name, page_content=text, metadata={"source": name})
    return split_into_passages([document], **kwargs)


def contents(text: str, name: str = "a.md", **kwargs: int) -> list[str]:
    return [passage.page_content for passage in split(text, name, **kwargs)]


def coverage(passages: list[Document]) -> Counter[int]:
    """How many passages hold each character of the text."""
    counts: Counter[int] = Counter()
    for passage in passages:
        start = passage.metadata["start_index"]
        counts.update(range(start, start + len(passage.page_content)))
    return counts


class TestPassages:
    @given(texts, st.sampled_from(["a.txt", "a.md"]), sizes, st.data())
    @example("aaa aaa aaa aaa aaa", "a.txt", 7, None)
    def test_a_passage_is_found_at_its_start_index(self, text, name, size, data):
        overlap = 3 if data is None else data.draw(st.integers(0, size - 1))
        passages = split(text, name, chunk_size=size, chunk_overlap=overlap)
        for passage in passages:
            start = passage.metadata["start_index"]
            assert text[start : start + len(passage.page_content)] == passage.page_content
            assert passage.page_content == passage.page_content.strip() != ""
            assert len(passage.page_content) <= size
        counts = coverage(passages)
        assert all(counts[i] for i, character in enumerate(text) if not character.isspace())

    @given(texts, st.sampled_from(["a.txt", "a.md"]), sizes)
    def test_without_overlap_every_character_is_covered_once(self, text, name, size):
        counts = coverage(split(text, name, chunk_size=size))
        for position, character in enumerate(text):
            assert counts[position] == 1 or (character.isspace() and counts[position] == 0)

    @given(texts, st.sampled_from(["a.txt", "a.md"]), sizes)
    def test_ids_are_unique_and_stable(self, text, name, size):
        ids = [passage.id for passage in split(text, name, chunk_size=size)]
        assert len(ids) == len(set(ids))
        assert ids == [passage.id for passage in split(text, name, chunk_size=size)]

    @given(texts)
    def test_plain_paragraphs_are_what_stands_between_blank_lines(self, text):
        expected = [part.strip() for part in re.split(r"\n\s*\n", text) if part.strip()]
        assert contents(text, "a.txt") == expected

    def test_ids_count_paragraphs_from_1_and_parts_after_a_dot(self):
        passages = split("One.\n\nTwo two. Two again.\n\nThree.", chunk_size=12)
        assert [(p.id, p.page_content) for p in passages] == [
            ("a.txt#1", "One."),
            ("a.txt#2.1", "Two two."),
            ("a.txt#2.2", "Two again."),
            ("a.txt#3", "Three."),
        ]
        assert passages[2].metadata == {"source": "a.txt", "paragraph": 2, "start_index": 15}
        assert json.loads(json.dumps(passages[2].metadata)) == passages[2].metadata

    def test_long_paragraphs_end_at_sentences_even_in_wrapped_lines(self):
        text = "The first sentence is\nhere. The second\none follows."
        assert contents(text, "a.txt", chunk_size=30) == [
            "The first sentence is\nhere.",
            "The second\none follows.",
        ]

    def test_chinese_paragraphs_are_split_at_sentences(self):
        assert contents("春天的花园。夏天的海滩。", "a.txt", chunk_size=7) == [
            "春天的花园。",
            "夏天的海滩。",
        ]

    def test_overlap_repeats_whole_words_of_the_part_before(self):
        text = "red kite blue heron grey owl"
        assert contents(text, "a.txt", chunk_size=17, chunk_overlap=6) == [
            "red kite",
            "kite blue heron",
            "heron grey owl",
        ]

    def test_metadata_of_the_document_is_kept_and_the_document_is_not_changed(self):
        document = Document(id="x", page_content="One.", metadata={"source": "s.txt", "year": 1})
        [passage] = split_into_passages([document])
        assert passage.id == "x#1"
        assert passage.metadata == {"source": "s.txt", "year": 1, "paragraph": 1, "start_index": 0}
        assert document.metadata == {"source": "s.txt", "year": 1}

    def test_a_document_without_a_name_is_refused(self):
        with pytest.raises(CorpusError, match="neither an id nor"):
            split_into_passages([Document(page_content="One.")])

    @pytest.mark.parametrize(("size", "overlap"), [(0, 0), (-1, 0), (10, 10), (10, -1)])
    def test_unfit_sizes_are_refused(self, size, overlap):
        with pytest.raises(ValueError, match=r"chunk_\w+ must be at least"):
            split("One.", chunk_size=size, chunk_overlap=overlap)


class TestMarkdown:
    def test_a_heading_goes_with_the_paragraph_after_it(self):
        text = "# Guide\n\n## Set-up\n\nRun it.\n\nThen rest.\n## Use\nAsk.\n\nTitle\n=====\n\nEnd."
        assert contents(text) == [
            "# Guide\n\n## Set-up\n\nRun it.",
            "Then rest.",
            "## Use\nAsk.",
            "Title\n=====\n\nEnd.",
        ]

    def test_a_heading_stays_with_the_first_part_of_a_long_paragraph(self):
        text = "## Use\n\nFirst sentence here. Second sentence here. Third sentence here."
        parts = contents(text, chunk_size=35)
        assert parts[0] == "## Use\n\nFirst sentence here."
        assert "".join(parts).count("## Use") == 1

    def test_a_heading_with_nothing_after_it_ends_the_last_passage(self):
        assert contents("One.\n\n# See also") == ["One.\n\n# See also"]
        assert contents("# Only\n\n## Headings") == ["# Only\n\n## Headings"]

    def test_a_rule_is_not_a_passage(self):
        assert contents("One.\n\n---\n\nTwo.") == ["One.", "---\n\nTwo."]

    def test_a_hash_without_a_space_is_no_heading(self):
        assert contents("#tag\n\nOne.") == ["#tag", "One."]

    @pytest.mark.parametrize("mark", ["```", "~~~", "````"])
    def test_a_code_fence_is_not_split_at_its_blank_lines(self, mark):
        text = f"Run.\n\n{mark}python\n# a comment\n\n\nx = 1\n{mark}\n\nDone."
        assert contents(text) == ["Run.", text[6:-7], "Done."]

    def test_a_paragraph_that_ends_in_a_colon_goes_with_what_it_announces(self):
        assert contents("Run this:\n\n```sh\nls\n```\n\nDone.") == [
            "Run this:\n\n```sh\nls\n```",
            "Done.",
        ]

    def test_a_long_list_is_split_before_its_items(self):
        assert contents("1. One one. Two.\n2. Three.\n3. Four.", chunk_size=20) == [
            "1. One one. Two.",
            "2. Three.\n3. Four.",
        ]

    def test_a_fence_in_a_list_is_kept_whole(self):
        text = "- do\n\n  ```sh\n  one\n\n  two\n  ```\n\nDone."
        assert contents(text) == ["- do", "```sh\n  one\n\n  two\n  ```", "Done."]

    def test_a_shorter_fence_does_not_close_a_longer_one(self):
        text = "````\n```\n\nx\n```\n\ny\n````"
        assert contents(text) == [text]

    def test_a_fence_that_is_too_long_is_split(self):
        parts = contents("```\n" + "\n\n".join(["word word"] * 9) + "\n```", chunk_size=40)
        assert len(parts) > 1
        assert all(len(part) <= 40 for part in parts)

    def test_an_unclosed_fence_does_not_lose_text(self):
        assert contents("One.\n\n```\nx\n\ny") == ["One.", "```\nx\n\ny"]

    @pytest.mark.parametrize("mark", ["---", "+++"])
    def test_front_matter_is_left_out(self, mark):
        [passage] = split(f"{mark}\ntitle: x\n\ntags: y\n{mark}\n\n# H\n\nOne.", "a.md")
        assert (passage.id, passage.page_content) == ("a.md#1", "# H\n\nOne.")

    def test_front_matter_is_kept_when_there_is_nothing_else(self):
        assert contents("---\ntitle: x\n---\n") == ["---\ntitle: x\n---"]

    def test_a_rule_at_the_top_is_no_front_matter(self):
        assert contents("---\n\nOne.\n\n---\n\nTwo.") == ["---\n\nOne.", "---\n\nTwo."]

    def test_plain_text_is_not_read_as_markdown(self):
        assert contents("# One\n\nTwo.", "a.txt") == ["# One", "Two."]


class TestFolders:
    def test_files_are_read_in_the_order_of_their_paths(self, tmp_path):
        for name in ["b.txt", "a/z.MD", "a.md", "notes.rst", "a/.hidden.txt", ".git/x.txt"]:
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_text(f"Text of {name}.")
        documents = load_documents(tmp_path)
        assert [document.id for document in documents] == ["a.md", "a/z.MD", "b.txt"]
        assert documents[1].metadata == {"source": "a/z.MD"}
        assert documents[1].page_content == "Text of a/z.MD."
        assert [p.id for p in load_passages(str(tmp_path))] == ["a.md#1", "a/z.MD#1", "b.txt#1"]

    def test_byte_order_mark_and_windows_line_ends_are_normalised(self, tmp_path):
        (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfOne.\r\n\r\nTwo \xc3\xa9.\rThree.")
        assert load_documents(tmp_path)[0].page_content == "One.\n\nTwo é.\nThree."

    @pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
    def test_a_file_that_is_not_utf8_is_named_with_the_byte_and_the_cure(self, tmp_path, mark):
        (tmp_path / "old.txt").write_bytes(mark + b"One.\ncaf\xe9 au lait")
        with pytest.raises(CorpusError) as caught:
            load_documents(tmp_path)
        message = str(caught.value)
        assert str(tmp_path / "old.txt") in message
        assert f"byte {len(mark) + 8}, in line 2, is 0xE9" in message
        assert "iconv -f WINDOWS-1252 -t UTF-8" in message

    def test_a_utf16_file_is_recognised(self, tmp_path):
        (tmp_path / "a.txt").write_text("One.", encoding="utf-16")
        with pytest.raises(CorpusError, match=r"UTF-16, not UTF-8.*iconv -f UTF-16"):
            load_documents(tmp_path)

    def test_a_binary_file_is_refused(self, tmp_path):
        (tmp_path / "a.txt").write_bytes(b"PK\x03\x00x")
        with pytest.raises(CorpusError, match=r"a\.txt is not text: byte 3 is NUL"):
            load_documents(tmp_path)

    def test_a_missing_folder_is_named(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        with pytest.raises(CorpusError, match=r"There is no folder nowhere\. Check the path"):
            load_documents("nowhere")

    def test_a_file_in_place_of_a_folder_is_named(self, tmp_path):
        (tmp_path / "a.txt").write_text("One.")
        with pytest.raises(CorpusError, match=r"a\.txt is a file, not a folder"):
            load_documents(tmp_path / "a.txt")

    def test_a_folder_without_text_files_is_named(self, tmp_path):
        (tmp_path / "a.pdf").write_text("One.")
        with pytest.raises(CorpusError, match=r"has no \.txt or \.md file"):
            load_documents(tmp_path)

    def test_an_empty_file_is_skipped_with_a_warning(self, tmp_path, caplog):
        (tmp_path / "a.txt").write_text(" \n")
        (tmp_path / "b.txt").write_text("One.")
        with caplog.at_level(logging.WARNING, logger="ragbook.corpus"):
            assert [document.id for document in load_documents(tmp_path)] == ["b.txt"]
        assert "a.txt: the file is empty" in caplog.text

    def test_c02_a_folder_of_empty_files_is_named(self, tmp_path):
        (tmp_path / "a.txt").write_text("")
        with pytest.raises(CorpusError, match=r"Every .* is empty"):
            load_documents(tmp_path)

    def test_an_unreadable_file_is_named(self, tmp_path, monkeypatch):
        (tmp_path / "a.txt").write_text("One.")

        def refuse(path: Path) -> bytes:
            raise PermissionError(13, "Permission denied", str(path))

        monkeypatch.setattr(Path, "read_bytes", refuse)  # root may read everything, so no chmod
        with pytest.raises(CorpusError, match=r"a\.txt cannot be read: Permission denied"):
            load_documents(tmp_path)

    def test_loops_of_links_end_and_a_folder_is_read_once(self, tmp_path):
        (tmp_path / "real").mkdir()
        (tmp_path / "real" / "a.txt").write_text("One.")
        os.symlink(tmp_path, tmp_path / "real" / "up")
        os.symlink(tmp_path / "real", tmp_path / "alias")
        os.symlink("self", tmp_path / "self")
        assert [document.id for document in load_documents(tmp_path)] == ["real/a.txt"]

    def test_a_dangling_link_is_named(self, tmp_path):
        os.symlink("gone.txt", tmp_path / "a.txt")
        with pytest.raises(CorpusError, match=r"a\.txt cannot be read"):
            load_documents(tmp_path)

    def test_the_default_folder_is_data_here_else_the_books_own(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        assert default_data_folder() == Path(__file__).parents[1] / "data"
        (tmp_path / "data").mkdir()
        assert default_data_folder() == Path("data")

    def test_no_default_folder_is_a_clear_error(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr("ragbook.corpus.__file__", str(tmp_path / "a" / "b" / "corpus.py"))
        with pytest.raises(CorpusError, match="--data FOLDER"):
            default_data_folder()

    def test_loading_a_corpus_imports_no_model_library(self):
        code = (
            "import sys; from ragbook.corpus import load_passages; load_passages('data', 300); "
            "sys.exit(bool({'torch', 'transformers', 'sentence_transformers'} & set(sys.modules)))"
        )
        root = Path(__file__).parents[1]
        assert subprocess.run([sys.executable, "-c", code], cwd=root, check=False).returncode == 0


GOOD = {
    "id": "q1",
    "question": "Who?",
    "answers": ["Stahl"],
    "relevant": ["a.txt#1"],
    "kind": "paraphrase",
}


class TestQuestionFiles:
    def load(self, tmp_path, *lines, passages=None):
        path = tmp_path / "q.jsonl"
        texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
        path.write_text("\n".join(texts), encoding="utf-8")
        return load_questions(path, passages)

    def test_questions_come_in_the_order_of_the_file(self, tmp_path):
        first, second = self.load(tmp_path, GOOD, "", {**GOOD, "id": "q0"})
        assert (first.id, second.id) == ("q1", "q0")
        assert first.answers == ("Stahl",)

    def test_a_question_cannot_be_changed(self, tmp_path):
        [question] = self.load(tmp_path, GOOD)
        with pytest.raises(ValueError, match="frozen"):
            question.id = "q2"

    @pytest.mark.parametrize(
        ("line", "message"),
        [
            ("{", "line 2: not valid JSON"),
            ("[]", r"line 2: a question is an object, such as .*, got \[\]\. "),
            ({"question": "Who?"}, r"line 2: `relevant` is missing\. "),
            ({"relevant": ["a.txt#1"]}, r"line 2: `question` is missing\. "),
            ({**GOOD, "note": "x"}, "line 2: there is no field `note`; the fields are id, .*kind"),
            ({**GOOD, "relevant": []}, "line 2: a question of kind paraphrase needs relevant"),
            ({**GOOD, "kind": "unanswerable"}, "line 2: an unanswerable .*no answers"),
            ({"question": "Who?", "relevant": [], "answers": ["x"]}, "line 2: an unanswerable"),
            ({**GOOD, "relevant": [3]}, "line 2: `relevant` must be a list of strings, it has 3"),
            ({**GOOD, "relevant": "a"}, 'line 2: `relevant` must be a list of .*, got "a"'),
            ({**GOOD, "answers": None}, "line 2: `answers` must be a list of .*, got null"),
            ({**GOOD, "kind": None}, "line 2: `kind` must be a string, got null"),
            ({**GOOD, "id": 7}, "line 2: `id` must be a string, got 7"),
            ({**GOOD, "question": " "}, "line 2: `question` is blank"),
            (GOOD, "line 2: the id q1 is taken"),
            (
                {**GOOD, "id": "q2", "relevant": ["a.txt#9"]},
                "line 2: no passage has the id a.txt#9",
            ),
        ],
    )
    def test_errors_name_file_and_line(self, tmp_path, line, message):
        passages = [Document(id="a.txt#1", page_content="Stahl.")]
        with pytest.raises(CorpusError, match=rf"q\.jsonl, {message}"):
            self.load(tmp_path, GOOD, line, passages=passages)

    def test_a_question_needs_only_its_text_and_its_passages(self, tmp_path):
        bare = {"question": "Who?", "relevant": ["a.txt#1"]}
        first, second, third = self.load(
            tmp_path, bare, {**bare, "kind": "hard"}, {"question": "When?", "relevant": []}
        )
        assert (first.id, first.answers, first.kind) == ("q1", (), "")
        assert (second.id, second.kind) == ("q2", "hard")
        assert (third.id, third.kind) == ("q3", "unanswerable")

    def test_the_folder_that_lacks_a_passage_is_named(self, tmp_path):
        (tmp_path / "q.jsonl").write_text(json.dumps(GOOD), encoding="utf-8")
        with pytest.raises(CorpusError, match=r"no passage of notes has the id a\.txt#1\. "):
            load_questions(tmp_path / "q.jsonl", [], "notes")

    def test_a_missing_file_is_named(self, tmp_path):
        with pytest.raises(CorpusError, match=r"q\.jsonl cannot be read"):
            load_questions(tmp_path / "q.jsonl")


def test_every_bad_file_is_named_at_once(tmp_path: Path) -> None:
    (tmp_path / "good.txt").write_text("Fine.", encoding="utf-8")
    (tmp_path / "latin.txt").write_bytes("café".encode("latin-1"))
    (tmp_path / "binary.md").write_bytes(b"a\x00b")
    with pytest.raises(CorpusError) as caught:
        load_documents(tmp_path)
    lines = str(caught.value).splitlines()
    assert len(lines) == 2
    assert "binary.md" in lines[0]
    assert "latin.txt" in lines[1]


def test_a_link_to_a_folder_outside_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret.txt").write_text("Not for this index.", encoding="utf-8")
    inside = tmp_path / "inside"
    inside.mkdir()
    (inside / "note.txt").write_text("A note.", encoding="utf-8")
    (inside / "link").symlink_to(tmp_path / "outside")
    (inside / "loop").symlink_to(inside)
    assert [document.id for document in load_documents(inside)] == ["note.txt"]


def test_the_licence_names_all_data() -> None:
    data = default_data_folder()
    granted, _, _ = (data / "LICENSE").read_text(encoding="utf-8").partition("They are licensed")
    named = set(re.split(r"[\s,]+", granted))
    assert {path.name for path in data.iterdir()} - {"LICENSE"} <= named
