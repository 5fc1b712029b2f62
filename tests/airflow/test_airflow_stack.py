"""The launcher of Airflow's processes: tells when it cannot start them, and whose processes they are.

What it starts is used, and stopped, in `test_real_airflow`.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import psutil
import pytest

from engine.errors import Busy, ConfigError
from engine.local.airflow_environment import AirflowSettings, environment_of
from engine.local.airflow_imports import forking
from engine.local.airflow_stack import COMPONENTS, AirflowDown, AirflowStack
from engine.processes import is_alive
from engine.testing.launch import Program
from engine.testing.processes import MARK, marked
from tests.airflow.sinks import HttpSink, serving
from tests.few import each_in_turn

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]


PATIENCE = """
import asyncio
from airflow import settings
from sqlalchemy import text

asked = text("PRAGMA busy_timeout")


async def beside() -> None:
    async with settings.async_engine.connect() as connection:
        print((await connection.execute(asked)).scalar())
    await settings.async_engine.dispose()


with settings.engine.connect() as connection:
    print(connection.execute(asked).scalar())
asyncio.run(beside())
"""


AUDIT = """
import asyncio, threading
from types import SimpleNamespace
from airflow.api_fastapi.core_api.routes.public.dag_run import dag_run_router

(trigger,) = [one for one in dag_run_router.routes if one.name == "trigger_dag_run"]
(log,) = [one.call for one in trigger.dependant.dependencies if one.call.__name__ == "log_action"]


async def body() -> bytes:
    return b"{}"


async def main() -> None:
    where = []
    session = SimpleNamespace(add=lambda line: where.append(line.event))
    session.commit = lambda: where.append(threading.current_thread() is threading.main_thread())
    request = SimpleNamespace(
        scope={"endpoint": trigger.endpoint}, headers={}, method="POST",
        query_params={}, path_params={}, body=body,
    )
    await log(request=request, session=session, user=None)
    print(*where)


asyncio.run(main())
"""


def settings(tmp_path: Path, **changes: object) -> AirflowSettings:
    dags = tmp_path / "dags"
    dags.mkdir(exist_ok=True)
    values: dict[str, object] = {
        "run_dir": tmp_path / "run",
        "dags_folder": dags,
        "plugins_folder": tmp_path / "plugins",
        "port": 0,
        "bytecode_dir": ROOT / ".run" / "pyc",
    }
    return AirflowSettings(**(values | changes))  # type: ignore[arg-type]


async def test_a_port_in_use_is_named_before_anything_starts(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        stack = AirflowStack(settings(tmp_path, port=port))
        with pytest.raises(Busy, match=rf"Port {port}, wanted by Airflow, is taken by .*{os.getpid()}"):
            await stack.start()
    assert not (tmp_path / "run" / "logs").exists()


AIRFLOW = """
import os, pathlib, signal, sys, time
name = "execution-api" if "execution" in sys.argv else sys.argv[1]
place = pathlib.Path(os.environ["STARTED"])
if name == os.environ["FAILS"]:
    if name != "db":  # the others have started by then
        while len(list(place.iterdir())) < 5:
            time.sleep(0.01)
    sys.exit(f"{name} cannot find NoSuchExecutor")
written = place.with_name(f"{name}.pid")
written.write_text(str(os.getpid()))
written.rename(place / name)  # who is seen there has its number in it
if name != "db":
    signal.pause()
"""


@pytest.mark.parametrize(("fails", "ends_with_us"), each_in_turn(["db", *COMPONENTS], [False, True]))
async def test_a_start_that_fails_says_why_and_leaves_nothing_running(
    tmp_path: Path, fails: str, ends_with_us: bool
) -> None:
    """A process that ends while starting ends the others. They stand in for Airflow's, each of which takes
    seconds to be imported before it can fail."""
    started = tmp_path / "started"
    started.mkdir()
    (tmp_path / "airflow").mkdir()
    (tmp_path / "airflow" / "__init__.py").touch()
    (tmp_path / "airflow" / "__main__.py").write_text(AIRFLOW)
    environment = {"PYTHONPATH": str(tmp_path), "STARTED": str(started), "FAILS": fails}
    stack = AirflowStack(settings(tmp_path, environment=environment), ends_with_us=ends_with_us)

    with pytest.raises(AirflowDown, match=fails) as failed:
        await stack.start()

    assert f"{fails} cannot find NoSuchExecutor" in failed.value.hint
    assert stack.pids == {}
    pids = [int(file.read_text()) for file in started.iterdir()]
    if fails != "db":
        assert len(pids) == 5
    elif not ends_with_us:  # then the database is first
        assert pids == []
    assert not any(psutil.pid_exists(pid) for pid in pids)


HEALTHY = """
import http.server, json, os, pathlib, signal, subprocess, sys
name = "execution-api" if "execution" in sys.argv else sys.argv[1]
if name == "db":
    sys.exit()
class Health(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        parts = ("metadatabase", "scheduler", "dag_processor", "triggerer")
        body = json.dumps({part: {"status": "healthy"} for part in parts}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
if name == "api-server":
    http.server.HTTPServer(("127.0.0.1", int(os.environ["AIRFLOW__API__PORT"])), Health).serve_forever()
if name == "execution-api" and "SILENT" not in os.environ:
    http.server.HTTPServer(("127.0.0.1", int(sys.argv[-1])), Health).serve_forever()
if name == "scheduler":
    worker = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()", "airflow worker"])
    pathlib.Path(os.environ["STARTED"], str(worker.pid)).touch()
signal.pause()
"""


@pytest.mark.parametrize("ends_with_us", [False, True])
async def test_what_has_ended_is_started_again_and_what_lives_is_left_alone(
    tmp_path: Path, ends_with_us: bool
) -> None:
    """kill -9 of the scheduler, whose worker lives on and would do a task that another one gets, too."""
    started = tmp_path / "started"
    started.mkdir()
    (tmp_path / "airflow").mkdir()
    (tmp_path / "airflow" / "__init__.py").touch()
    (tmp_path / "airflow" / "__main__.py").write_text(HEALTHY)
    stack = AirflowStack(
        settings(tmp_path, environment={"PYTHONPATH": str(tmp_path), "STARTED": str(started)}),
        ends_with_us=ends_with_us,
    )
    await stack.start()
    try:
        while not (workers := [psutil.Process(int(file.name)) for file in started.iterdir()]):
            await asyncio.sleep(0.01)
        before = stack.pids
        scheduler = psutil.Process(before["scheduler"])
        scheduler.kill()
        while "scheduler" in stack.pids:
            await asyncio.sleep(0.01)

        await stack.restart_ended()

        after = stack.pids
        assert after.keys() == before.keys()
        assert {name for name in after if after[name] != before[name]} == {"scheduler"}
        assert not any(map(is_alive, workers))
    finally:
        await stack.stop()
    assert stack.pids == {}


async def test_what_does_not_work_in_time_is_named_and_nothing_is_left_running(tmp_path: Path) -> None:
    started = tmp_path / "started"
    started.mkdir()
    (tmp_path / "airflow").mkdir()
    (tmp_path / "airflow" / "__init__.py").touch()
    (tmp_path / "airflow" / "__main__.py").write_text(HEALTHY)
    environment = {"PYTHONPATH": str(tmp_path), "STARTED": str(started), "SILENT": "yes"}
    stack = AirflowStack(settings(tmp_path, environment=environment))
    seen: list[str] = []

    with pytest.raises(AirflowDown, match=r"is not healthy after 3 s: .*interface for tasks"):
        await stack.start(timeout_s=3.0, progress=seen.append)

    assert "Airflow: interface for tasks is healthy" not in seen
    assert stack.pids == {}


def test_an_unreadable_state_file_is_reported_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "stack.json").write_text("{")
    with pytest.raises(ConfigError, match="by hand"):
        AirflowStack(settings(tmp_path))


def test_a_process_id_that_now_belongs_to_somebody_else_is_not_ours(tmp_path: Path) -> None:
    me = psutil.Process()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "stack.json").write_text(
        json.dumps(
            {
                "port": 1,
                "tasks_port": 2,
                "password": "x",
                "processes": [{"name": "scheduler", "pid": me.pid, "started": "another boot/5"}],
            }
        )
    )
    assert AirflowStack(settings(tmp_path)).pids == {}


def test_settings_of_another_airflow_are_not_inherited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW__DATABASE__SQL_ALCHEMY_CONN", "sqlite:////somebody/elses.db")
    monkeypatch.setenv("AIRFLOW_CONN_ZOOKEEPER_DEFAULT", "zookeeper://elsewhere")
    environment = environment_of(settings(tmp_path), port=1, tasks_port=2)
    assert "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN" not in environment
    assert "AIRFLOW_CONN_ZOOKEEPER_DEFAULT" not in environment


def test_what_a_killed_scheduler_ran_is_looked_for_as_soon_as_it_counts_as_dead(tmp_path: Path) -> None:
    """Airflow says so 30 s after its last sign of life. By default it looks every 300 s."""
    name = "AIRFLOW__SCHEDULER__ORPHANED_TASKS_CHECK_INTERVAL"
    assert float(environment_of(settings(tmp_path), port=1, tasks_port=2)[name]) <= 30
    compose = (ROOT / "docker-compose.yaml").read_text()
    assert f'{name}: "30"' in compose and "SCHEDULER_HEALTH_CHECK_THRESHOLD" not in compose


@pytest.fixture
def said_by(tmp_path: Path) -> Iterator[Callable[[str, Sequence[str]], list[str]]]:
    """The last two words of a script that runs in a process forked as Airflow's are, with these arguments."""
    (tmp_path / "run" / "airflow").mkdir(parents=True)
    environment = environment_of(settings(tmp_path), port=1, tasks_port=2)
    forks = forking(environment, log_file=tmp_path / "imports.log")
    if forks is None:
        pytest.skip("each process imports for itself here")

    def run(script: str, arguments: Sequence[str]) -> list[str]:
        said = tmp_path / "said"
        program = Program((sys.executable, "-c", script, *arguments), environment, tmp_path)
        with said.open("wb") as output:
            assert forks.launch(program, output.fileno()).wait() == 0, said.read_text()
        return said.read_text().split()[-2:]

    yield run
    forks.close()


@pytest.mark.extended
def test_the_api_server_waits_less_for_its_turn_to_write_than_those_that_end_when_they_wait_in_vain(
    said_by: Callable[[str, Sequence[str]], list[str]],
) -> None:
    """SQLite says itself how long a connection waits, in ms; Airflow has two kinds of them."""
    waits = {component: said_by(PATIENCE, arguments) for component, arguments in COMPONENTS.items()}
    patient = dict.fromkeys(COMPONENTS, ["300000"] * 2)
    assert waits == patient | {"api-server": ["30000"] * 2}


@pytest.mark.extended
def test_the_api_server_waits_for_its_turn_to_write_its_audit_log_beside_its_loop(
    said_by: Callable[[str, Sequence[str]], list[str]],
) -> None:
    """In the loop it waited for a lock that another request gives back when the loop has got on."""
    assert said_by(AUDIT, COMPONENTS["api-server"]) == ["trigger_dag_run", "False"]


@pytest.mark.parametrize("name", ["no_proxy", "NO_PROXY"])
def test_tasks_ask_the_api_server_directly_where_the_environment_has_a_proxy(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(variable, "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.setenv(name, ".example.org")
    environment = environment_of(settings(tmp_path), port=1, tasks_port=2)
    assert environment["no_proxy"].startswith(".example.org,")
    with serving(HttpSink()) as sink:
        ask = f"import httpx; httpx.post('http://127.0.0.1:{sink.server_address[1]}/', json={{}})"
        subprocess.run([sys.executable, "-c", ask], env=environment, check=True, timeout=60)
    assert len(sink.bodies) == 1


def test_the_launcher_does_not_import_airflow() -> None:
    import subprocess

    code = "import sys, engine.local.airflow_stack; sys.exit('airflow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


def test_a_process_of_airflow_is_found_by_its_mark_whatever_title_it_has(tmp_path: Path) -> None:
    """Airflow's workers and API server are called otherwise than they were started; a killed owner's guard
    finds them by the variable that they inherited."""
    titled = "import setproctitle as s; s.setproctitle('worker ' * 90); print('titled', flush=True); input()"
    environment = environment_of(settings(tmp_path, environment={MARK: "of-this-test"}), port=1, tasks_port=2)
    with subprocess.Popen(
        [sys.executable, "-c", titled],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == "titled\n"

        found = [found.pid for found in marked("of-this-test")]

        process.communicate("end\n")
    assert found == [process.pid]
