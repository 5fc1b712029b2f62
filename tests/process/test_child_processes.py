"""Children are stopped, killed with their owner, and swept by their mark."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from engine.env import SystemEnv
from engine.ports import free_ports, is_free
from engine.processes import ProcessId, is_alive
from engine.testing.guard import Guard
from engine.testing.launch import Launch, cold
from engine.testing.processes import MARK, ChildProcess, marked, sweep
from engine.testing.warm import WarmPython, is_possible

pytestmark = pytest.mark.slow

FOREVER = "import signal, sys; print('up', flush=True); signal.pause()"
DEAF = "import signal; signal.signal(15, signal.SIG_IGN); print('up', flush=True)\nwhile True: signal.pause()"


def child(tmp_path: Path, code: str, *, mark: str = "", launch: Launch = cold) -> ChildProcess:
    log_file = tmp_path / "logs" / "child.log"
    return ChildProcess("child", [sys.executable, "-c", code], log_file=log_file, mark=mark, launch=launch)


@pytest.fixture(scope="module")
def warm() -> Iterator[WarmPython]:
    python = WarmPython("signal")
    yield python
    python.close()


@pytest.fixture(params=["cold", "warm"])
def launch(request: pytest.FixtureRequest, warm: WarmPython) -> Launch:
    return warm.launch if request.param == "warm" else cold


async def until_it_says(process: ChildProcess, word: str) -> None:
    env = SystemEnv()
    while word not in process.log_tail():
        assert process.is_running, process.log_tail()
        await env.sleep(0.01)


async def test_a_stopped_child_is_gone_and_its_code_is_known(tmp_path: Path, launch: Launch) -> None:
    process = child(tmp_path, FOREVER, launch=launch)
    process.start()
    await until_it_says(process, "up")
    identity = process.id
    assert identity is not None and identity.is_alive

    assert await process.stop() == -signal.SIGTERM

    assert not identity.is_alive
    assert process.return_code == -signal.SIGTERM


async def test_a_child_that_ignores_sigterm_is_killed_after_its_time(tmp_path: Path, launch: Launch) -> None:
    process = child(tmp_path, DEAF, launch=launch)
    process.start()
    await until_it_says(process, "up")

    assert await process.stop(timeout_s=0.2) == -signal.SIGKILL


async def test_a_paused_child_can_be_stopped(tmp_path: Path, launch: Launch) -> None:
    process = child(tmp_path, FOREVER, launch=launch)
    process.start()
    await until_it_says(process, "up")
    process.pause()
    assert process.pid is not None
    while psutil.Process(process.pid).status() != psutil.STATUS_STOPPED:
        await SystemEnv().sleep(0.01)

    assert await process.stop() == -signal.SIGTERM


async def test_a_child_started_again_appends_to_its_log(tmp_path: Path, launch: Launch) -> None:
    process = child(tmp_path, "print('once')", launch=launch)
    process.start()
    assert await process.wait() == 0
    process.start()
    assert await process.wait() == 0
    assert process.log_file.read_text() == "once\nonce\n"


async def test_a_reused_process_number_is_not_believed() -> None:
    mine = ProcessId.of(os.getpid())
    assert mine is not None and mine.is_alive
    assert not ProcessId(mine.pid, mine.started + "0").is_alive


async def test_a_child_has_the_surroundings_that_it_was_given_and_its_own_exit_code(
    tmp_path: Path, launch: Launch
) -> None:
    code = (
        "import os, sys; print(os.environ['GIVEN'], os.getcwd(), sys.argv[1:], os.getsid(0) == os.getpid(), "
        "os.environ.get('HOME')); sys.exit(7)"
    )
    process = ChildProcess(
        "child",
        [sys.executable, "-c", code, "an argument"],
        log_file=tmp_path / "log",
        environ={"GIVEN": "this"},
        cwd=tmp_path,
        launch=launch,
    )
    process.start()
    assert await process.wait() == 7
    assert process.log_file.read_text() == f"this {tmp_path} ['an argument'] True None\n"


async def test_a_warm_child_that_fails_says_so_and_the_next_one_is_not_touched(
    tmp_path: Path, warm: WarmPython
) -> None:
    process = child(tmp_path, "raise ValueError('as it is')", launch=warm.launch)
    process.start()
    assert await process.wait() == 1
    assert "ValueError: as it is" in process.log_tail()
    said = child(tmp_path / "said", "import sys; sys.exit('what went wrong')", launch=warm.launch)
    said.start()
    assert (await said.wait(), said.log_tail()) == (1, "what went wrong")
    killed = child(tmp_path / "killed", FOREVER, launch=warm.launch)
    killed.start()
    await killed.kill9()
    assert killed.return_code == -signal.SIGKILL


async def test_when_the_forking_process_is_closed_nothing_is_left_of_what_it_started(tmp_path: Path) -> None:
    """Not even one that dies slowly: the kernel has much of its memory to take back."""
    python = WarmPython("signal")
    process = child(tmp_path, f"held = b'x' * 500_000_000\n{FOREVER}", launch=python.launch)
    process.start()
    await until_it_says(process, "up")
    identity = process.id
    assert identity is not None

    python.close()

    assert not identity.is_alive
    assert await process.wait() == -signal.SIGKILL


def needs_forks() -> None:
    if not is_possible():
        pytest.skip("elsewhere than on Linux programs are started cold")


async def test_what_is_forked_can_be_told_by_its_title_and_by_its_mark(tmp_path: Path) -> None:
    """`ps` shows the program that runs, and the guard finds it by the variable that its parent had."""
    needs_forks()
    python = WarmPython("signal", "engine.testing.launch", environ={**os.environ, MARK: "of-this-fork"})
    process = child(tmp_path, FOREVER, launch=python.launch)
    try:
        process.start()
        await until_it_says(process, "up")
        assert process.pid is not None

        assert " ".join(psutil.Process(process.pid).cmdline()).startswith(
            f"{sys.executable} -c import signal"
        )
        assert process.pid in [found.pid for found in marked("of-this-fork")]
    finally:
        python.close()
    await process.wait()


async def test_preparing_ends_when_all_is_imported_and_passes_over_what_is_not_there(tmp_path: Path) -> None:
    needs_forks()
    log_file = tmp_path / "logs" / "imports.log"
    python = WarmPython("no.such.module", "this", log_file=log_file)
    try:
        python.prepare()
        python.prepare()  # once more is no harm

        assert "Beautiful is better than ugly" in log_file.read_text()
        assert "No module named 'no'" in log_file.read_text()
        process = child(tmp_path, "import sys; sys.exit('this' not in sys.modules)", launch=python.launch)
        process.start()
        assert await process.wait() == 0
    finally:
        python.close()


def test_preparing_that_fails_is_an_error_and_not_a_wait(tmp_path: Path) -> None:
    needs_forks()
    python = WarmPython("sys:exit", log_file=tmp_path / "imports.log")
    with pytest.raises(OSError, match="has ended"):
        python.prepare()
    python.close()


async def test_a_forking_process_that_was_killed_is_started_again(tmp_path: Path) -> None:
    """Everything that it had started ends with it; a supervisor starts that again."""
    needs_forks()
    python = WarmPython("signal")
    process = child(tmp_path, FOREVER, launch=python.launch)
    try:
        process.start()
        await until_it_says(process, "up")
        assert process.pid is not None
        forking = psutil.Process(process.pid).parent()
        assert forking is not None
        forking.kill()
        assert await process.wait() == -signal.SIGKILL
        while is_alive(forking):
            await SystemEnv().sleep(0.01)

        process.start()

        assert process.is_running
        assert await process.stop() in (0, -signal.SIGTERM)
    finally:
        python.close()


async def test_where_processes_cannot_be_opened_programs_are_started_cold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Old kernels cannot, and old container engines forbid it: the local stack runs there all the same."""

    def forbidden(*_: object) -> int:
        raise PermissionError("Operation not permitted")

    monkeypatch.setattr(os, "pidfd_open", forbidden, raising=False)
    python = WarmPython("signal")
    python.prepare()
    process = child(tmp_path, FOREVER, launch=python.launch)
    process.start()
    await until_it_says(process, "up")
    assert process.pid is not None and psutil.Process(process.pid).ppid() == os.getpid()

    assert await process.stop() == -signal.SIGTERM
    python.close()


@pytest.mark.parametrize("kind", ["cold", "WarmPython().launch"])
async def test_a_killed_owner_takes_its_child_along(tmp_path: Path, kind: str) -> None:
    """1. An owner starts a child and waits. 2. The owner is killed with -9. 3. The child ends as well."""
    if sys.platform != "linux":
        pytest.skip("the death signal is Linux's; elsewhere the guard does this")
    program = f"""
import signal, sys
from pathlib import Path
from engine.testing.launch import cold
from engine.testing.processes import ChildProcess
from engine.testing.warm import WarmPython
log_file = Path({str(tmp_path)!r}) / "c"
child = ChildProcess("c", [sys.executable, "-c", {FOREVER!r}], log_file=log_file, launch={kind})
child.start()
print(child.pid, flush=True)
signal.pause()
"""
    owner = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    assert owner.stdout is not None
    with owner.stdout:
        identity = ProcessId.of(int(owner.stdout.readline()))
    assert identity is not None and identity.is_alive

    owner.kill()
    owner.wait()

    while identity.is_alive:
        await SystemEnv().sleep(0.01)


async def test_a_sweep_ends_grandchildren_that_left_the_family_and_nobody_else(tmp_path: Path) -> None:
    mark = str(uuid.uuid4())
    leaver = (
        "import subprocess, sys; "
        f"p = subprocess.Popen([sys.executable, '-c', {FOREVER!r}], start_new_session=True); print(p.pid)"
    )
    stranger = child(tmp_path / "stranger", FOREVER)
    stranger.start()
    process = child(tmp_path, leaver, mark=mark)
    process.start()
    await process.wait()
    grandchild = ProcessId.of(int(process.log_file.read_text().split()[0]))
    assert grandchild is not None and grandchild.is_alive
    while grandchild.pid not in [found.pid for found in marked(mark)]:
        await SystemEnv().sleep(0.01)

    assert await sweep(mark) == 1

    assert not grandchild.is_alive
    assert stranger.is_running
    await stranger.stop()


async def test_the_guard_of_a_killed_owner_sweeps_and_goes(tmp_path: Path) -> None:
    """1. The owner starts a guard and a marked process out of its reach. 2. kill -9. 3. Both end."""
    mark = str(uuid.uuid4())
    program = f"""
import os, signal, subprocess, sys
from engine.testing.guard import Guard
guard = Guard({mark!r})
guard.start()
child = subprocess.Popen([sys.executable, "-c", {FOREVER!r}], stdout=subprocess.DEVNULL,
    start_new_session=True, env={{**os.environ, {MARK!r}: {mark!r}}})
print(guard.pid, child.pid, flush=True)
signal.pause()
"""
    owner = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    assert owner.stdout is not None
    with owner.stdout:
        identities = [ProcessId.of(int(pid)) for pid in owner.stdout.readline().split()]

    owner.kill()
    owner.wait()

    for identity in identities:
        assert identity is not None
        while identity.is_alive:
            await SystemEnv().sleep(0.01)


async def test_a_guard_that_was_told_of_an_orderly_end_touches_nothing(tmp_path: Path) -> None:
    mark = str(uuid.uuid4())
    guard = Guard(mark)
    guard.start()
    process = child(tmp_path, FOREVER, mark=mark)
    process.start()
    await until_it_says(process, "up")

    guard.close()
    guard.close()

    assert process.is_running
    await process.stop()


def test_free_ports_are_different_and_can_be_bound() -> None:
    ports = free_ports(5)
    assert len(set(ports)) == 5
    assert all(is_free(port) for port in ports)


SEARCH = """
import random
from engine.env import SystemEnv
from engine.ports import free_ports

class BeginsThere(SystemEnv):
    rng = random.Random(7)

print(*free_ports(5, env=BeginsThere()), flush=True)
input()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the marks are abstract Unix sockets")
def test_two_searches_that_begin_at_one_place_find_different_ports_before_anything_listens_there() -> None:
    def search() -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-c", SEARCH], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    with search() as first, search() as second:
        assert first.stdout is not None
        assert second.stdout is not None
        ports = [*first.stdout.readline().split(), *second.stdout.readline().split()]
        first.communicate("\n")
        second.communicate("\n")

    assert len(ports) == 10
    assert len(set(ports)) == 10
