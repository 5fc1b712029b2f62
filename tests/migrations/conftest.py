"""Ledgers to test against: SQLite in a file, and a PostgreSQL server of the test's own where one is
installed."""

from __future__ import annotations

import os
import pwd
import secrets
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.ports import free_ports
from engine.processes import ProcessId
from engine.testing.guard import Guard


def _postgresql_binaries() -> Path | None:
    found = shutil.which("initdb")
    candidates = [Path(found).resolve().parent] if found else []
    candidates += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    return next((path for path in candidates if (path / "initdb").exists()), None)


def _unprivileged() -> list[str]:
    """PostgreSQL refuses to run as root."""
    if os.geteuid() != 0:
        return []
    names = {entry.pw_name for entry in pwd.getpwall()}
    return ["runuser", "-u", "postgres" if "postgres" in names else "nobody", "--"]


@pytest.fixture(scope="session")
def postgresql_server() -> Iterator[str]:
    """The URL of a server, without a database. Skipped visibly where PostgreSQL is not installed."""
    binaries = _postgresql_binaries()
    if binaries is None:
        pytest.skip("PostgreSQL is not installed (Debian: apt-get install postgresql)")
    home = Path(tempfile.mkdtemp(prefix="oncluster-pg-", dir="/tmp"))
    home.chmod(0o777)
    [port] = free_ports(1)
    user = _unprivileged()
    data = home / "data"

    def call(*command: str) -> None:
        subprocess.run([*user, *command], check=True, stdout=subprocess.DEVNULL, cwd="/tmp")

    call(f"{binaries}/initdb", "-A", "trust", "-U", "postgres", "-D", str(data))
    options = f"-p {port} -k {home} -c listen_addresses=127.0.0.1 -c fsync=off"
    start = (f"{binaries}/pg_ctl", "-D", str(data), "-w", "-o", options, "-l", str(home / "log"), "start")
    guard = Guard(secrets.token_hex(16))
    guard.start()  # a worker of pytest-xdist is killed where somebody presses Ctrl-C
    call(*start)
    try:
        guard.also(ProcessId.of(int((data / "postmaster.pid").read_text().split()[0])))
        yield f"postgresql://postgres@127.0.0.1:{port}"
    finally:
        call(f"{binaries}/pg_ctl", "-D", str(data), "-w", "-m", "immediate", "stop")
        guard.close()
        shutil.rmtree(home, ignore_errors=True)


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.slow)])
def ledger_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty database."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'ledger.sqlite'}"
    return str(request.getfixturevalue("postgresql_ledger_url"))


@pytest.fixture
def postgresql_ledger_url(request: pytest.FixtureRequest, postgresql_server: str) -> str:
    """An empty database in PostgreSQL."""
    from sqlalchemy import create_engine, text

    name = f"t{os.getpid()}_{abs(hash(request.node.nodeid))}"
    url = postgresql_server.replace("postgresql://", "postgresql+psycopg2://")
    engine = create_engine(f"{url}/postgres", isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(text(f"CREATE DATABASE {name}"))
    engine.dispose()
    return f"{postgresql_server}/{name}"
