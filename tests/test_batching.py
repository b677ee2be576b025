from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retrievers.batching import CommonBatches, token_batches


@given(
    st.lists(st.integers(0, 40), max_size=30),
    st.none() | st.integers(1, 100),
    st.integers(1, 12),
)
def test_every_text_is_in_one_batch_and_no_batch_is_over_the_budget(
    lengths: list[int], tokens: int | None, most: int
) -> None:
    batches = token_batches(lengths, tokens, most)
    assert sorted(place for batch in batches for place in batch) == list(range(len(lengths)))
    for batch in batches:
        assert 1 <= len(batch) <= most
        padded = len(batch) * max(lengths[place] for place in batch)
        assert len(batch) == 1 or tokens is None or padded <= tokens


@given(st.lists(st.integers(1, 40), min_size=1, max_size=30), st.integers(1, 100))
def test_batches_go_from_long_to_short_and_equals_keep_their_order(
    lengths: list[int], tokens: int
) -> None:
    order = [place for batch in token_batches(lengths, tokens, 8) for place in batch]
    assert order == sorted(range(len(lengths)), key=lambda place: (-lengths[place], place))


def test_a_batch_is_filled_as_far_as_the_budget_goes() -> None:
    assert token_batches([10, 50, 10, 40, 9], 100, 32) == [[1, 3], [0, 2, 4]]
    assert token_batches([10, 50, 10, 40, 9], None, 2) == [[1, 3], [0, 2], [4]]
    assert token_batches([500], 100, 32) == [[0]]


@pytest.mark.parametrize("most", [0, -1])
def test_batches_without_room_for_a_text_are_refused_and_not_made_for_ever(most: int) -> None:
    with pytest.raises(ValueError, match=f"at least 1 text, got {most}"):
        token_batches([1], None, most)


class Model:
    """Doubles numbers; can be held in the middle of its work, and remembers its rounds."""

    def __init__(self) -> None:
        self.rounds: list[list[int]] = []
        self.threads: list[threading.Thread] = []
        self.inside = threading.Event()
        self.go_on = threading.Event()
        self.go_on.set()
        self.unfit: BaseException | None = None

    def __call__(self, items: list[int]) -> list[int]:
        self.rounds.append(items)
        self.threads.append(threading.current_thread())
        self.inside.set()
        assert self.go_on.wait(10)
        if self.unfit and 13 in items:
            raise self.unfit
        return [2 * item for item in items]


def wait_until(true: Callable[[], bool]) -> None:
    for _ in range(2000):
        if true():
            return
        threading.Event().wait(0.005)
    raise AssertionError("it did not come to that")


class Callers:
    """Threads that ask, each for its own items, while the model is held by the first."""

    def __init__(self, batches: CommonBatches[int, int], model: Model) -> None:
        self.batches, self.model = batches, model
        self.answers: dict[int, list[int] | BaseException] = {}
        self.threads: list[threading.Thread] = []

    def ask(self, *items: int) -> None:
        number = len(self.threads)

        def work() -> None:
            try:
                self.answers[number] = self.batches.run(items)
            except BaseException as error:
                self.answers[number] = error

        waiting = len(self.batches._waiting)
        self.threads.append(threading.Thread(target=work))
        self.threads[-1].start()
        if number == 0:
            assert self.model.inside.wait(10)
        else:
            wait_until(lambda: len(self.batches._waiting) == waiting + 1)

    def finish(self) -> dict[int, list[int] | BaseException]:
        self.model.go_on.set()
        for thread in self.threads:
            thread.join(10)
            assert not thread.is_alive()
        return self.answers


def held(most: int = 128) -> tuple[Model, CommonBatches[int, int], Callers]:
    model = Model()
    model.go_on.clear()
    batches: CommonBatches[int, int] = CommonBatches(model, most)
    callers = Callers(batches, model)
    callers.ask(0)
    return model, batches, callers


def test_one_caller_alone_is_served_at_once_in_its_own_thread() -> None:
    model = Model()
    assert CommonBatches(model).run([1, 2]) == [2, 4]
    assert (model.rounds, model.threads) == ([[1, 2]], [threading.current_thread()])


def test_those_who_wait_share_the_next_round_and_each_gets_its_own() -> None:
    model, _, callers = held()
    for items in ([1], [2, 3], [4]):
        callers.ask(*items)
    assert callers.finish() == {0: [0], 1: [2], 2: [4, 6], 3: [8]}
    assert model.rounds == [[0], [1, 2, 3, 4]]


def test_a_round_is_bounded_and_a_large_request_is_not_cut() -> None:
    model, _, callers = held(most=3)
    for items in ([1, 2], [3], [4, 5, 6, 7], [8]):
        callers.ask(*items)
    callers.finish()
    assert model.rounds == [[0], [1, 2, 3], [4, 5, 6, 7], [8]]


@pytest.mark.parametrize("error", [ValueError("unlucky"), MemoryError(), SystemExit(3)])
def test_one_callers_error_is_not_anothers(error: BaseException) -> None:
    model, batches, callers = held()
    model.unfit = error
    for item in (1, 13, 2):
        callers.ask(item)
    assert callers.finish() == {0: [0], 1: [2], 2: error, 3: [4]}
    assert batches.run([5]) == [10]


def test_too_few_results_are_an_error_and_go_to_nobody_else() -> None:
    batches: CommonBatches[int, int] = CommonBatches(lambda items: items[1:])
    with pytest.raises(ValueError, match="made 1 results of 2 texts"):
        batches.run([1, 2])


def test_a_thread_that_is_interrupted_leaves_the_others_requests_to_them() -> None:
    class Interrupted(Model):
        def __call__(self, items: list[int]) -> list[int]:
            done = super().__call__(items)
            if threading.current_thread() is threading.main_thread():
                raise KeyboardInterrupt
            return done

    model = Interrupted()
    batches: CommonBatches[int, int] = CommonBatches(model)
    callers = Callers(batches, model)
    batches.model_lock.acquire()
    waiting = threading.Thread(target=lambda: callers.answers.update({0: batches.run([1])}))
    waiting.start()
    wait_until(lambda: len(batches._waiting) == 1)
    mine = batches._ask([2])
    with pytest.raises(KeyboardInterrupt):  # as `run` does it, with the lock already held
        batches._serve_next(mine)
    assert model.rounds == [[1, 2]]
    batches.model_lock.release()
    waiting.join(10)
    assert callers.answers == {0: [2]}
    assert isinstance(mine.future.exception(), KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt):
        batches.run([3])


async def test_tasks_share_rounds_and_hold_one_thread() -> None:
    model = Model()
    model.go_on.clear()
    batches: CommonBatches[int, int] = CommonBatches(model)
    first = asyncio.create_task(batches.arun([0]))
    assert await asyncio.to_thread(model.inside.wait, 10)
    others = [asyncio.create_task(batches.arun([n, -n])) for n in range(1, 9)]
    await asyncio.sleep(0)
    model.go_on.set()
    assert await asyncio.gather(first, *others) == [[0], *([2 * n, -2 * n] for n in range(1, 9))]
    assert model.rounds == [[0], [sign * n for n in range(1, 9) for sign in (1, -1)]]
    assert len(set(model.threads)) == 1
    assert model.threads[0] is not threading.main_thread()


async def test_the_event_loop_goes_on_while_the_model_works() -> None:
    model = Model()
    model.go_on.clear()
    task = asyncio.create_task(CommonBatches(model).arun([1]))
    while not model.inside.is_set():
        await asyncio.sleep(0.005)
    model.go_on.set()  # which a loop that is blocked would never come to
    assert await task == [2]


async def test_a_task_cancelled_while_it_waits_is_left_out_of_the_batch() -> None:
    model = Model()
    model.go_on.clear()
    batches: CommonBatches[int, int] = CommonBatches(model)
    tasks = [asyncio.create_task(batches.arun([0]))]
    assert await asyncio.to_thread(model.inside.wait, 10)
    tasks += [asyncio.create_task(batches.arun([number])) for number in (1, 2, 3)]
    await asyncio.sleep(0)
    tasks[0].cancel()  # in the middle of its work
    tasks[2].cancel()  # before it
    answers = await asyncio.gather(*tasks[::2], return_exceptions=True)
    assert [type(answer) for answer in answers] == [asyncio.CancelledError] * 2
    model.go_on.set()
    assert await asyncio.gather(tasks[1], tasks[3]) == [[2], [6]]
    assert model.rounds == [[0], [1, 3]]


async def test_one_tasks_error_is_not_anothers() -> None:
    model = Model()
    model.unfit = ValueError("unlucky")
    batches: CommonBatches[int, int] = CommonBatches(model)
    answers: Sequence[Any] = await asyncio.gather(
        *(batches.arun([n]) for n in range(10, 16)), return_exceptions=True
    )
    assert answers[3] is model.unfit
    assert [*answers[:3], *answers[4:]] == [[20], [22], [24], [28], [30]]


async def test_a_model_that_has_no_next_answer_is_an_error_and_not_a_task_that_waits() -> None:
    answers = iter([[2]])
    batches: CommonBatches[int, int] = CommonBatches(lambda items: next(answers))
    assert await batches.arun([1]) == [2]
    with pytest.raises(RuntimeError, match="StopIteration") as caught:
        await asyncio.wait_for(batches.arun([1]), 10)
    assert isinstance(caught.value.__cause__, StopIteration)
    with pytest.raises(RuntimeError, match="StopIteration"):
        batches.run([1])


@pytest.mark.parametrize(
    "use",
    [
        "async def ask():\n"
        "    tasks = [asyncio.create_task(batches.arun([n])) for n in range(50)]\n"
        "    await asyncio.sleep(0.1)\n"
        "asyncio.run(ask())",
        "for n in range(50):\n"
        "    threading.Thread(target=batches.run, args=([n],), daemon=True).start()",
        "asyncio.run(batches.arun([1]))\natexit.register(batches.run, [2])",
    ],
    ids=["tasks wait", "threads wait", "asked when the process ends"],
)
def test_a_process_ends_although_requests_wait(use: str) -> None:
    code = (
        "import asyncio, atexit, threading, time\n"
        "from retrievers.batching import CommonBatches\n"
        "batches = CommonBatches(lambda items: (time.sleep(0.5), items)[1], most=1)\n"
    )
    run = subprocess.run([sys.executable, "-c", code + use], timeout=20, capture_output=True)
    assert (run.returncode, run.stderr) == (0, b"")


def test_threads_and_several_event_loops_share_one_model() -> None:
    model = Model()
    batches: CommonBatches[int, int] = CommonBatches(model, most=7)
    answers: dict[int, list[int]] = {}

    def in_thread(base: int) -> None:
        for n in range(base, base + 20):
            answers[n] = batches.run([n])

    def in_loop(base: int) -> None:
        async def ask(n: int) -> None:
            answers[n] = await batches.arun([n])

        async def main() -> None:
            await asyncio.gather(*(ask(n) for n in range(base, base + 20)))

        asyncio.run(main())

    works = [(in_thread, 0), (in_loop, 100), (in_thread, 200), (in_loop, 300), (in_thread, 400)]
    threads = [threading.Thread(target=work, args=(base,)) for work, base in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    assert answers == {n: [2 * n] for _, base in works for n in range(base, base + 20)}
    assert sorted(item for items in model.rounds for item in items) == sorted(answers)


def test_an_event_loop_that_ended_in_the_middle_harms_nobody() -> None:
    model = Model()
    model.go_on.clear()
    batches: CommonBatches[int, int] = CommonBatches(model)

    async def give_up() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(batches.arun([1]), 0.01)

    asyncio.run(give_up())
    model.go_on.set()
    assert batches.run([2]) == [4]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_process_forked_while_the_model_is_held_can_use_its_own() -> None:
    model, batches, callers = held()
    callers.ask(1)
    child = os.fork()
    if child == 0:  # only exit here, or the tests would run on twice
        right = False
        try:
            model.go_on = threading.Event()
            model.go_on.set()
            right = batches.run([5]) == [10] and asyncio.run(batches.arun([6])) == [12]
        finally:
            os._exit(0 if right else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert callers.finish() == {0: [0], 1: [2]}


async def test_the_thread_for_tasks_ends_with_its_owner() -> None:
    batches: CommonBatches[int, int] | None = CommonBatches(lambda items: items)
    assert batches
    await batches.arun([1])
    (thread,) = batches._thread._threads  # type: ignore[union-attr]
    batches = None
    gc.collect()
    thread.join(10)
    assert not thread.is_alive()
