"""A call is run once, though the system gives no thread for it."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from engine.patient_threads import PatientThreads


@pytest.fixture
def no_more_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuses)


def blocked(pool: ThreadPoolExecutor) -> threading.Event:
    """Its only thread is, until the event is set."""
    go_on, is_begun = threading.Event(), threading.Event()

    def wait() -> None:
        is_begun.set()
        go_on.wait()

    pool.submit(wait)
    is_begun.wait()
    return go_on


def test_a_call_waits_for_a_thread_that_there_is(request: pytest.FixtureRequest) -> None:
    calls: list[int] = []
    with PatientThreads(3, "patient") as pool:
        go_on = blocked(pool)
        request.getfixturevalue("no_more_threads")
        found = [pool.submit(calls.append, number) for number in range(3)]
        assert not any(each.done() for each in found)
        go_on.set()
        for each in found:
            each.result()
    assert calls == [0, 1, 2]


def test_the_first_thread_is_there_before_it_is_needed(request: pytest.FixtureRequest) -> None:
    with PatientThreads(3, "patient") as pool:
        request.getfixturevalue("no_more_threads")
        assert pool.submit(int, "7").result() == 7


def test_python_s_own_runs_what_it_has_refused(request: pytest.FixtureRequest) -> None:
    """Which is why there is another one."""
    calls: list[int] = []
    with ThreadPoolExecutor(3) as pool:
        go_on = blocked(pool)
        request.getfixturevalue("no_more_threads")
        with pytest.raises(RuntimeError):
            pool.submit(calls.append, 1)
        go_on.set()
    assert calls == [1]
