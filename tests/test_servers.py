from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from helpers import doc
from ragbook.servers import SearchServer, WikiServer

PAGES = [doc(f"red kite {n}", id=f"p{n}", title=f"Kite {n}", lang="en") for n in range(7)]


@pytest.fixture
def search() -> Iterator[SearchServer]:
    with SearchServer(PAGES) as server:
        yield server


@pytest.fixture
def wiki() -> Iterator[WikiServer]:
    with WikiServer(PAGES, token="sesame", page_size=3) as server:
        yield server


def ask(server: SearchServer, **parameters: Any) -> Any:
    return httpx.get(f"{server.url}/search", params={"q": "kite", **parameters}).json()


def test_it_listens_on_the_loopback_address_alone(search: SearchServer) -> None:
    assert search.url.startswith("http://127.0.0.1:")


def test_get_and_post_find_the_same(search: SearchServer) -> None:
    (first,) = ask(search, limit=1)["results"]
    assert first["score"] > 0
    assert {**first, "score": 0} == {
        "id": "p0",
        "title": "Kite 0",
        "text": "red kite 0",
        "score": 0,
        "metadata": {"title": "Kite 0", "lang": "en"},
    }
    body = {"q": "kite", "limit": 1}
    assert httpx.post(f"{search.url}/search", json=body).json() == ask(search, limit=1)
    assert ask(search, q="heron") == {"results": [], "next": None}


def test_next_leads_through_all_results(search: SearchServer) -> None:
    found, path = [], "/search?q=kite&limit=3"
    while path:
        answer = httpx.get(search.url + path).json()
        found += [result["id"] for result in answer["results"]]
        path = answer["next"]
    assert found == [f"p{n}" for n in range(7)]
    assert search.counters.requests == 3


@pytest.mark.parametrize("way", ["cursor", "url", "link", "page"])
def test_the_wiki_can_be_paged_in_four_ways(wiki: WikiServer, way: str) -> None:
    start = f"{wiki.url}/wiki/pages?search=kite"
    found, url, number = [], start, 1
    with httpx.Client(headers={"Authorization": "Bearer sesame"}) as client:
        while url:
            response = client.get(url)
            answer = response.json()
            found.append(len(answer["pages"]))
            number += 1
            following = {
                "cursor": answer["next_cursor"] and f"{start}&cursor={answer['next_cursor']}",
                "url": answer["next"],
                "link": response.links.get("next", {}).get("url"),
                "page": f"{start}&page={number}" if len(answer["pages"]) == 3 else None,
            }
            url = following[way]
    assert found == [3, 3, 1]


def test_a_wiki_page_by_its_id(wiki: WikiServer) -> None:
    headers = {"Authorization": "Bearer sesame"}
    assert httpx.get(f"{wiki.url}/wiki/pages/p3", headers=headers).json()["title"] == "Kite 3"
    assert httpx.get(f"{wiki.url}/wiki/pages/p9", headers=headers).status_code == 404


def test_without_the_token_nothing_is_said(wiki: WikiServer) -> None:
    for headers in ({}, {"Authorization": "Bearer wrong"}):
        response = httpx.get(f"{wiki.url}/wiki/pages?search=kite", headers=headers)
        assert response.status_code == 401
        assert "kite" not in response.text


@pytest.mark.parametrize("wrong", ["limit=x", "limit=-1", "offset=1.5"])
def test_parameters_that_are_no_numbers_are_status_400(search: SearchServer, wrong: str) -> None:
    assert httpx.get(f"{search.url}/search?q=kite&{wrong}").status_code == 400


def test_errors_and_limits_end_after_their_number(search: SearchServer) -> None:
    def statuses() -> list[int]:
        return [httpx.get(f"{search.url}/search?q=kite").status_code for _ in range(3)]

    with search.faulty(errors=2, error_status=503):
        assert statuses() == [503, 503, 200]
    with search.faulty(limits=1, retry_after="7"):
        assert httpx.get(f"{search.url}/search").headers["Retry-After"] == "7"
        assert statuses() == [200, 200, 200]
    with search.faulty(errors=math.inf):
        assert statuses() == [500, 500, 500]
    assert statuses() == [200, 200, 200]


def test_a_reset_is_a_reset(search: SearchServer) -> None:
    with search.faulty(resets=1):
        with pytest.raises(httpx.ReadError):
            ask(search)
        assert ask(search)["results"]


def test_what_an_answer_can_be_besides_right(search: SearchServer) -> None:
    with search.faulty(html=True):
        response = httpx.get(f"{search.url}/search?q=kite")
        assert (response.status_code, response.headers["Content-Type"]) == (200, "text/html")
    with search.faulty(broken_json=True), pytest.raises(ValueError, match="char"):
        ask(search)
    with search.faulty(padding=1_000_000, compress=True):
        response = httpx.get(f"{search.url}/search?q=kite")
        assert len(response.content) > 1_000_000 > int(response.headers["Content-Length"]) * 100
    with search.faulty(rewrite=lambda body: {"items": body["results"]}):
        assert len(ask(search)["items"]) == 7
    with search.faulty(redirect="http://other.invalid/"):
        assert httpx.get(f"{search.url}/search").headers["Location"] == "http://other.invalid/"


@pytest.mark.parametrize("endless", ["new", "same"])
def test_endless_pages_never_end(search: SearchServer, endless: str) -> None:
    with search.faulty(endless=endless):
        paths, path = [], "/search?q=kite&limit=3"
        for _ in range(10):
            answer = httpx.get(search.url + path).json()
            assert answer["results"]
            path = answer["next"]
            paths.append(path)
    assert len(set(paths)) == (10 if endless == "new" else 1)


@pytest.mark.parametrize("fault", [{"slow_first_byte": 60.0}, {"slow_body": 60.0}])
def test_a_slow_answer_ends_with_the_server(search: SearchServer, fault: dict[str, float]) -> None:
    with search.faulty(**fault), pytest.raises(httpx.ReadTimeout):
        httpx.get(f"{search.url}/search?q=kite", timeout=0.1)
    search.stop()
    while search.counters.now:
        threading.Event().wait(0.001)


def test_what_is_slow_when_the_faults_end_waits_no_longer(search: SearchServer) -> None:
    with ThreadPoolExecutor(1) as threads:
        with search.faulty(slow_first_byte=60):
            answer = threads.submit(ask, search)
            while search.counters.now == 0:
                threading.Event().wait(0.001)
        assert len(answer.result(timeout=4)["results"]) == 7


def test_a_stopped_server_refuses_and_a_started_one_has_its_old_address(
    search: SearchServer,
) -> None:
    url = search.url
    with httpx.Client() as client:
        assert client.get(f"{url}/search?q=kite").status_code == 200
        search.stop()
        with pytest.raises(httpx.ConnectError):
            client.get(f"{url}/search?q=kite")
        search.start()
        assert search.url == url
        assert client.get(f"{url}/search?q=kite").status_code == 200


def test_it_counts_requests_connections_and_how_many_at_once(search: SearchServer) -> None:
    with search.faulty(slow_first_byte=0.05), httpx.Client() as client, ThreadPoolExecutor(4) as t:
        list(t.map(lambda _: client.get(f"{search.url}/search?q=kite"), range(8)))
    counters = search.counters
    assert (counters.requests, counters.now) == (8, 0)
    assert 2 <= counters.connections <= 4
    assert 2 <= counters.most <= 4
    search.forget()
    assert search.counters.requests == 0
    assert search.requests == []


def test_an_unknown_fault_is_an_error(search: SearchServer) -> None:
    with pytest.raises(ValueError, match="no fault named 'slow'"), search.faulty(slow=1):
        pass
