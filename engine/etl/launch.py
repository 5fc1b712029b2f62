"""How Spark is started for a load: `spark-submit`, its configuration and its environment.

The command line and Airflow start the same thing: Airflow's operator takes `spark_conf` and
`spark_environment` and builds the command itself, from its connection; `run_load` builds it here.

Safety. The process changes the cluster, and only by its own commit (see the application). Killed at any
moment, also by our timeout or Ctrl-C, it leaves each partition of a shard as it was or as it will be, and the
load can be started again with the same job id: it goes on from there. What is never done here: reading a
report of an earlier run. The report's file is removed first.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from engine.errors import ConfigError, OnclusterError, Refused
from engine.etl import ending
from engine.etl.java_home import java_home_for_spark
from engine.etl.report import LoadReport
from engine.etl.request import LoadRequest
from engine.etl.spark_home import home_without_zip
from engine.keeper.java import find_java, java_locale
from engine.processes import is_alive

ROOT = Path(__file__).resolve().parents[2]
APPLICATION = ROOT / "spark_apps" / "load_flights.py"
DEFAULT_MASTER = "local[*,4]"
USER_VARIABLE, PASSWORD_VARIABLE = "ONCLUSTER_USER", "ONCLUSTER_PASSWORD"
_LOCAL = re.compile(r"local(?:\[(\*|\d+)\])?")
_TRIES = 4
# What a chat program shows of a message is not much more.
_TAIL_LINES, _TAIL_CHARACTERS = 25, 1500
_JAVA_FRAME = re.compile(r"\s*(?:at [\w.$/<>]+\(|\.\.\. \d+ more)|[\w.$/<>]+\([\w$]+\.(?:java|scala):\d+\)$")
_CHUNK, _LONGEST_LINE = 2**16, 2**20
_GRACE_S = 10.0
_LOOK_S = 0.05
# Java interprets methods beyond 8,000 bytes for ever, and a query with many expressions is one such method.
_JAVA_OPTIONS = "-XX:-DontCompileHugeMethods"
_CONF = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "WARN",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "4",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # Trying out what packs each column best takes most of the time of caching, for a few reads.
    "spark.sql.inMemoryColumnarStorage.compressed": "false",
    # Losing attempts are harmless to the data, but they cost the cluster as much as the winning ones.
    "spark.speculation": "false",
    "spark.driver.extraJavaOptions": _JAVA_OPTIONS,
    "spark.executor.extraJavaOptions": _JAVA_OPTIONS,
}


class SparkFailed(OnclusterError):
    """The application ended with another exit code than 0; the hint is the end of its output."""


class SparkRefused(Refused):
    """The application says that it would end like this each time; the hint is the end of its output."""


def failure_of(code: int, output: Iterable[str]) -> SparkFailed | SparkRefused:
    """What an exit code other than 0 means; negative: a signal. Frames of Java's traces are left out, which
    would be all that there is room for."""
    said = [line for line in output if not _JAVA_FRAME.match(line)]
    hint = "\n".join(said[-_TAIL_LINES:])[-_TAIL_CHARACTERS:]
    if code == ending.REFUSED:
        return SparkRefused("The Spark application refuses the load, and would do so again.", hint=hint)
    return SparkFailed(
        f"The Spark application {_ended(code)}. Started again as the same load, it goes on from where it "
        "was.",
        hint=hint,
    )


@dataclass(frozen=True, slots=True)
class SparkSettings:
    """Where and how large. `directory` is for what is made on the way: the report, a home for Java.

    The password goes to the application through its environment: a command line is everybody's to read.
    """

    directory: Path
    config: Path
    master: str = DEFAULT_MASTER
    driver_memory: str = "1g"
    user: str = "default"
    password: str = field(default="", repr=False)
    conf: Mapping[str, str] = field(default_factory=dict)
    application: Path = APPLICATION

    def report_file(self, request: LoadRequest) -> Path:
        return self.directory / f"{request.job_id}.json"


def with_retries(master: str) -> str:
    """A local master with four tries for each task, as any other master has: `local[*]` alone has one."""
    found = _LOCAL.fullmatch(master)
    return f"local[{found.group(1) or 1},{_TRIES}]" if found else master


def spark_conf(settings: SparkSettings, *, master: str) -> dict[str, str]:
    """Spark's properties for this master; what `settings.conf` says goes first."""
    conf = {**_CONF, "spark.pyspark.python": sys.executable, "spark.executorEnv.PYTHONPATH": _python_path()}
    if _is_on_this_machine(master):
        conf |= {"spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1"}
    return conf | dict(settings.conf)


def spark_environment(settings: SparkSettings, *, master: str) -> dict[str, str]:
    """What the application's process has to find in its environment, beside what is in ours.

    Raises ConfigError when there is no Java.
    """
    home = java_home_for_spark(find_java(), settings.directory / "java")
    environment = {
        "JAVA_HOME": str(home),
        **java_locale(),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "PYTHONPATH": _python_path(),
        # Spark compares the installed pandas with the newest it knows, in every worker.
        "PYTHONWARNINGS": "ignore::FutureWarning",
        USER_VARIABLE: settings.user,
        PASSWORD_VARIABLE: settings.password,
    }
    if _is_on_this_machine(master):
        environment["SPARK_LOCAL_IP"] = "127.0.0.1"
    # Others, as YARN, send the zip to their executors.
    if _is_own_master(master) and "SPARK_HOME" not in os.environ:
        spark_home = home_without_zip(settings.directory / "spark")
        if spark_home is not None:
            environment["SPARK_HOME"] = str(spark_home)
    return environment


def spark_submit() -> Path:
    """The program, of the package `pyspark` in this environment or on the path. Raises ConfigError."""
    beside = Path(sys.executable).with_name("spark-submit")
    found = str(beside) if beside.is_file() else shutil.which("spark-submit")
    if found is None:
        raise ConfigError("There is no spark-submit.", hint="`make venv` installs it, with pyspark.")
    return Path(found)


def require_application(settings: SparkSettings) -> Path:
    """Raises ConfigError when the application's file is not there."""
    if not settings.application.is_file():
        raise ConfigError(f"There is no Spark application {settings.application}.")
    return settings.application


def prepare(settings: SparkSettings, request: LoadRequest) -> Path:
    """The report's file, which does not exist when this returns."""
    report = settings.report_file(request)
    report.parent.mkdir(parents=True, exist_ok=True)
    report.unlink(missing_ok=True)
    return report


def command_line(settings: SparkSettings, request: LoadRequest) -> list[str]:
    """The whole command, program first. Raises ConfigError."""
    master = with_retries(settings.master)
    command = [str(spark_submit()), "--master", master, "--name", f"load {request.job_id}"]
    command += ["--driver-memory", settings.driver_memory]
    for name, value in sorted(spark_conf(settings, master=master).items()):
        command += ["--conf", f"{name}={value}"]
    report = settings.report_file(request)
    return [
        *command,
        str(require_application(settings)),
        *request.arguments(config=settings.config, report=report),
    ]


async def run_load(
    settings: SparkSettings, request: LoadRequest, *, on_line: Callable[[str], None] = lambda _: None
) -> LoadReport:
    """Run the application to its end and return its report. `on_line` is told each line of its output.

    Cancelled, it ends the process and everything that came of it. Raises ConfigError, SparkFailed,
    SparkRefused, Corrupt.
    """
    command = command_line(settings, request)
    report = prepare(settings, request)
    environment = {**os.environ, **spark_environment(settings, master=with_retries(settings.master))}
    process = await asyncio.create_subprocess_exec(
        *command,
        env=environment,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        start_new_session=True,
    )
    tail: list[str] = []
    try:
        assert process.stdout is not None
        async for line in _lines(process.stdout):
            if not _JAVA_FRAME.match(line):
                tail = [*tail[1 - _TAIL_LINES :], line]
            on_line(line)
        code = await process.wait()
    finally:
        await _end(process)
    if code != 0:
        raise failure_of(code, tail)
    return LoadReport.read_file(report)


def _ended(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:  # real-time signals have no names
        return f"was ended by signal {-code}"


async def _lines(output: asyncio.StreamReader) -> AsyncIterator[str]:
    """The lines of an output, each cut after `_LONGEST_LINE` bytes: Spark prints plans, and errors with the
    rows that they are about, on one line of any length."""
    line = bytearray()
    while chunk := await output.read(_CHUNK):
        *ended, rest = chunk.split(b"\n")
        for part in ended:
            line += part[: _LONGEST_LINE - len(line)]
            yield line.decode("utf-8", "replace").rstrip()
            line.clear()
        line += rest[: _LONGEST_LINE - len(line)]
    if line:
        yield line.decode("utf-8", "replace").rstrip()


async def _end(process: asyncio.subprocess.Process) -> None:
    """End what is alive of the session that the process leads.

    Its program may have ended before the others. Spark's Python workers have a process group of their own,
    but no session. A second cancellation takes the time away that they are given to end by themselves.
    """
    try:
        for number in (signal.SIGTERM, signal.SIGKILL):
            if not await _signalled(process, number):
                return
    except asyncio.CancelledError:
        _signal(process.pid, signal.SIGKILL)
        raise


async def _signalled(process: asyncio.subprocess.Process, number: signal.Signals) -> bool:
    """Whether some are alive still, at the end of the time that they have."""
    alive = _signal(process.pid, number)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_GRACE_S):
            while alive or process.returncode is None:
                await asyncio.sleep(_LOOK_S)
                alive = _of_session(process.pid)
    return bool(alive)


def _signal(session: int, number: signal.Signals) -> list[psutil.Process]:
    """Those that it was sent to."""
    alive = _of_session(session)
    for one in alive:
        with contextlib.suppress(psutil.NoSuchProcess):
            one.send_signal(number)
    return alive


def _of_session(session: int) -> list[psutil.Process]:
    """The processes of a session; those that have ended and wait for their parent are not among them."""
    found = []
    for process in psutil.process_iter():
        # What has ended meanwhile, or is none of ours to look at.
        with contextlib.suppress(OSError, psutil.Error):
            if os.getsid(process.pid) == session and is_alive(process):
                found.append(process)
    return found


def _is_on_this_machine(master: str) -> bool:
    return master.startswith(("local", "spark://127.0.0.1", "spark://localhost"))


def _is_own_master(master: str) -> bool:
    return master.startswith(("local", "spark://"))


def _python_path() -> str:
    """The project first: the application imports its own package and the engine."""
    inherited = os.environ.get("PYTHONPATH", "")
    return os.pathsep.join(part for part in (str(ROOT), inherited) if part)
