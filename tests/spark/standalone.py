"""Spark's own cluster on this machine, and drivers that are processes of their own.

A driver runs functions of importable modules, one after another or at once, each with its session:

    with standalone(directory, hosts=("127.0.0.1", "127.0.0.2")) as master, Driver(master, work) as driver:
        driver.run(some_module.some_function, "argument")

It may be killed, and with it its Java; what its Java has started then is nobody's child.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from pathlib import Path
from typing import Any, ParamSpec, Self, TypeVar, cast

import psutil
from pyspark.sql import SparkSession

from engine.etl.launch import SparkSettings, spark_conf, spark_environment
from engine.ports import free_ports
from engine.processes import is_alive
from tests.quick_java import QUICK_SPARK

_P = ParamSpec("_P")
_R = TypeVar("_R")

_DEPLOY = "org.apache.spark.deploy"


@contextlib.contextmanager
def standalone(
    directory: Path, *, hosts: Sequence[str] = ("127.0.0.1",), cores: int = 2, memory: str = "1g"
) -> Iterator[str]:
    """A master, and on each host a worker with so many cores; gives the master's address.

    A speculative copy of a task goes to another host only: 127.0.0.2 is one.
    """
    (directory / "scratch").mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, **spark_environment(SparkSettings(directory, directory), master="local")}
    environment["JDK_JAVA_OPTIONS"] = QUICK_SPARK  # of the executors, too
    environment["SPARK_LOCAL_DIRS"] = str(directory / "scratch")
    spark_class = str(Path(sys.executable).with_name("spark-class"))
    port, *interfaces = free_ports(2 + len(hosts))
    master = f"spark://127.0.0.1:{port}"

    def start(name: str, host: str, *arguments: str) -> subprocess.Popen[bytes]:
        with (directory / f"{name}.log").open("wb") as log:
            return subprocess.Popen(
                [spark_class, *arguments],
                env=environment | {"SPARK_LOCAL_IP": host},
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def interface() -> tuple[str, str]:
        return "--webui-port", str(interfaces.pop())

    address = ("--host", "127.0.0.1", "--port", str(port))
    started = [start("master", "127.0.0.1", f"{_DEPLOY}.master.Master", *address, *interface())]
    try:
        for number, host in enumerate(hosts):
            size = ("--cores", str(cores), "--memory", memory)
            where = ("--host", host, "--work-dir", str(directory / "work"), *interface())
            started.append(start(f"worker{number}", host, f"{_DEPLOY}.worker.Worker", *size, *where, master))
        yield master
    finally:
        for process in reversed(started):
            process.terminate()
        for process in started:
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


class Driver:
    """A process with a Spark session. `conf` goes before what a load sets."""

    def __init__(self, master: str, directory: Path, *, conf: Mapping[str, str] | None = None) -> None:
        options = {f"spark.{part}.extraJavaOptions": QUICK_SPARK for part in ("driver", "executor")}
        settings = SparkSettings(directory, directory, conf=options | dict(conf or {}))
        with contextlib.ExitStack() as stack:
            before = dict(os.environ)
            stack.callback(os.environ.update, before)
            stack.callback(os.environ.clear)
            os.environ.update(spark_environment(settings, master=master))
            self._pool = ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"))
            self._pid = self._pool.submit(_start, master, spark_conf(settings, master=master)).result()
        self._killed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if not self._killed:
            self._pool.submit(_stop).result()
        self._pool.shutdown()

    def run(self, what: Callable[_P, _R], *args: _P.args, **kwargs: _P.kwargs) -> _R:
        """Raises RuntimeError with the text of whatever it raised."""
        return cast(_R, self._pool.submit(_told, what, args, kwargs).result())

    def begin(self, what: Callable[_P, Any], *args: _P.args, **kwargs: _P.kwargs) -> Future[Any]:
        """For what does not end before the driver does: the others wait for it."""
        return self._pool.submit(what, *args, **kwargs)

    def kill(self) -> None:
        """SIGKILL to the driver and its Java, and to nothing else."""
        self._killed = True
        process = psutil.Process(self._pid)
        killed = [*filter(_is_java, process.children(recursive=True)), process]
        for one in killed:
            one.kill()
        wait_until_ended(killed)


def wait_until_ended(processes: Iterable[psutil.Process]) -> None:
    """Whoever should take note of their end may be gone: a zombie has ended."""
    for process in processes:
        while is_alive(process):
            time.sleep(0.02)


def _is_java(process: psutil.Process) -> bool:
    try:
        return bool(process.name() == "java")
    except psutil.NoSuchProcess:  # Spark's Python workers come and go
        return False


def _start(master: str, conf: Mapping[str, str]) -> int:
    builder = SparkSession.builder.master(master)
    for name, value in conf.items():
        builder = builder.config(name, value)
    builder.getOrCreate().sparkContext.setLogLevel("OFF")
    return os.getpid()


def _told(what: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Errors of Spark hold Java's objects: only their text can leave the process."""
    try:
        return what(*args, **kwargs)
    except Exception as error:  # noqa: BLE001
        raise RuntimeError(f"{type(error).__name__}: {error}") from None


def _stop() -> None:
    spark = SparkSession.getActiveSession()
    assert spark is not None
    gateway: Any = spark.sparkContext._gateway
    spark.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()  # which is how the JVM is told to end
    gateway.proc.wait()
