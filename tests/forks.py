"""Runs the fast tests in several processes that are made when everything is collected.

    python -m pytest -p no:xdist -p tests.forks --forks 3 -m "not slow"

Workers of pytest-xdist each import and collect all tests, which takes a fifth of the processor time of the
fast ones. These have it from their parent. The files are handed out in their order (`tests/conftest.py`), the
next one before the last test of one that goes before; those of a directory of `TOGETHER` go to one worker, as
they share a home that is made at import.

A worker that ends before its work is done fails the test it was at; tests that nobody ran then are counted in
an error.
"""

from __future__ import annotations

import mmap
import os
import pickle
import selectors
import struct
import traceback
import warnings
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

TOGETHER = ("tests/airflow/",)

_NUMBER = struct.Struct("<I")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--forks", type=int, default=0, help="run files in so many processes")


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """Instead of pytest's own, which is left what cannot be run or need not be divided."""
    config = session.config
    if config.option.forks < 2 or config.option.collectonly or session.testsfailed:
        return None
    groups = _groups(session.items)
    # Before there are children: they put their directories into it.
    base = config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]
    work, fill = os.pipe()
    os.write(fill, b"".join(_NUMBER.pack(number) for number in range(len(groups))))
    os.close(fill)
    workers: list[_Worker] = []
    stop = mmap.mmap(-1, 1)
    try:
        for number in range(min(config.option.forks, len(groups))):
            workers.append(_Worker(session, groups, work, stop, base / f"worker-{number}"))
        _follow(session, workers)
    finally:
        stop[0] = 1
        os.close(work)
        for worker in workers:
            worker.end()
    return True


def _groups(items: Sequence[pytest.Item]) -> list[list[pytest.Item]]:
    """What is run by one worker, in order: the tests of a file, or of a directory of `TOGETHER`."""
    groups: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        together = (directory for directory in TOGETHER if item.nodeid.startswith(directory))
        groups[next(together, item.nodeid.split("::")[0])].append(item)
    return list(groups.values())


class _Worker:
    """A child, seen from its parent. It sends what pytest calls hooks with, each as a length and a pickle."""

    def __init__(
        self,
        session: pytest.Session,
        groups: list[list[pytest.Item]],
        work: int,
        stop: mmap.mmap,
        base: Path,
    ) -> None:
        self.at: tuple[str, Any] | None = None
        """The test that it runs."""
        self.is_done = False
        self.reading, writing = os.pipe()
        self._pending = b""
        self.pid = os.fork()
        if not self.pid:
            code = 1
            try:
                os.close(self.reading)
                _Child(session, writing, stop, base).work(_taken(groups, work))
                code = 0
            except KeyboardInterrupt:
                pass  # the parent has had it, too
            except BaseException:  # noqa: BLE001 - whatever it is, nothing above this may go on in a child
                traceback.print_exc()
            finally:
                os._exit(code)
        os.close(writing)

    def receive(self) -> Iterator[tuple[str, Any]]:
        """What has come; nothing at the end of the child."""
        data = os.read(self.reading, 1 << 20)
        if not data:
            raise EOFError
        self._pending += data
        while len(self._pending) >= _NUMBER.size:
            end = _NUMBER.size + _NUMBER.unpack_from(self._pending)[0]
            if len(self._pending) < end:
                return
            message = pickle.loads(self._pending[_NUMBER.size : end])
            self._pending = self._pending[end:]
            yield message

    def end(self) -> int:
        """Wait for it; its status, as `waitpid` gives it. One that is to stop may finish its test."""
        if not self.pid:
            return 0
        while os.read(self.reading, 1 << 20):
            pass
        os.close(self.reading)
        pid, self.pid = self.pid, 0
        return os.waitpid(pid, 0)[1]


def _taken(groups: list[list[pytest.Item]], work: int) -> Iterator[list[pytest.Item]]:
    """The groups that nobody else has taken. A pipe gives each number to one reader."""
    while number := os.read(work, _NUMBER.size):
        yield groups[_NUMBER.unpack(number)[0]]


class _Child:
    """The child itself, a plugin of its pytest in the place of what writes to the terminal."""

    def __init__(self, session: pytest.Session, writing: int, stop: mmap.mmap, base: Path) -> None:
        self._config = session.config
        self._writing = writing
        self._stop = stop
        plugins = self._config.pluginmanager
        for name in ("terminalreporter", "lfplugin", "nfplugin", "stepwiseplugin", "junitxml"):
            if (plugin := plugins.get_plugin(name)) is not None:
                plugins.unregister(plugin)
        plugins.register(self, "oncluster-forks-child")
        base.mkdir(0o700)
        self._config._tmp_path_factory._basetemp = base  # type: ignore[attr-defined]
        # The files that it captures into would be those of the parent, and of all its children.
        capture: Any = plugins.get_plugin("capturemanager")
        capture.stop_global_capturing()
        capture.start_global_capturing()
        capture.suspend_global_capture(in_=True)

    def work(self, groups: Iterator[list[pytest.Item]]) -> None:
        before: pytest.Item | None = None
        for group in groups:
            for item in group:
                if before is not None:
                    self._run(before, None if self._stop[0] else item)
                if self._stop[0]:
                    return
                before = item
        if before is not None:
            self._run(before, None)
        self._send("done", None)

    def _run(self, item: pytest.Item, following: pytest.Item | None) -> None:
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)

    def _send(self, kind: str, what: Any) -> None:
        try:
            data = pickle.dumps((kind, what))
        except Exception:
            if kind != "warning":
                raise
            data = pickle.dumps((kind, {**what, "message": UserWarning(str(what["message"]))}))
        data = _NUMBER.pack(len(data)) + data
        while data:
            data = data[os.write(self._writing, data) :]

    def pytest_runtest_logstart(self, nodeid: str, location: Any) -> None:
        self._send("start", (nodeid, location))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        hook = self._config.hook
        self._send("report", hook.pytest_report_to_serializable(config=self._config, report=report))

    def pytest_runtest_logfinish(self, nodeid: str, location: Any) -> None:
        self._send("finish", (nodeid, location))

    def pytest_warning_recorded(
        self, warning_message: warnings.WarningMessage, when: str, nodeid: str, location: Any
    ) -> None:
        seen = warning_message
        self._send(
            "warning",
            {
                "message": seen.message,
                "filename": seen.filename,
                "lineno": seen.lineno,
                "when": when,
                "nodeid": nodeid,
                "location": location,
            },
        )


def _follow(session: pytest.Session, workers: list[_Worker]) -> None:
    """To the end of all: what the workers' hooks were called with, this process's are called with."""
    finished = set()
    with selectors.DefaultSelector() as selector:
        for worker in workers:
            selector.register(worker.reading, selectors.EVENT_READ, worker)
        while selector.get_map():
            for key, _ in selector.select():
                worker = key.data
                try:
                    for kind, what in worker.receive():
                        _tell(session, worker, kind, what)
                        if kind == "finish":
                            finished.add(what[0])
                except EOFError:
                    selector.unregister(worker.reading)
                    if not worker.is_done:
                        _fail(session, worker)
                if session.shouldfail:
                    raise session.Failed(session.shouldfail)
                if session.shouldstop:
                    raise session.Interrupted(session.shouldstop)
    missed = [item.nodeid for item in session.items if item.nodeid not in finished]
    if missed:
        raise pytest.UsageError(f"{len(missed)} tests were not run, as a worker had ended: {missed[0]} …")


def _tell(session: pytest.Session, worker: _Worker, kind: str, what: Any) -> None:
    hook = session.config.hook
    match kind:
        case "start":
            worker.at = what
            hook.pytest_runtest_logstart(nodeid=what[0], location=what[1])
        case "report":
            report = hook.pytest_report_from_serializable(config=session.config, data=what)
            hook.pytest_runtest_logreport(report=report)
        case "finish":
            worker.at = None
            hook.pytest_runtest_logfinish(nodeid=what[0], location=what[1])
        case "warning":
            message = warnings.WarningMessage(
                what["message"], type(what["message"]), what["filename"], what["lineno"]
            )
            hook.pytest_warning_recorded.call_historic(
                kwargs={
                    "warning_message": message,
                    "when": what["when"],
                    "nodeid": what["nodeid"],
                    "location": what["location"],
                }
            )
        case "done":
            worker.is_done = True
        case _:
            raise ValueError(kind)


def _fail(session: pytest.Session, worker: _Worker) -> None:
    """The test at which a worker has ended."""
    nodeid, location = worker.at or ("a worker", ("", None, "between two tests"))
    status = worker.end()
    what = (
        f"signal {os.WTERMSIG(status)}"
        if os.WIFSIGNALED(status)
        else f"status {os.waitstatus_to_exitcode(status)}"
    )
    report = pytest.TestReport(
        nodeid, location, {}, "failed", f"The process that ran the tests ended here with {what}.", "call"
    )
    session.config.hook.pytest_runtest_logreport(report=report)
