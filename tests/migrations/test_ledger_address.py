"""Where a ledger is kept: what an address may be, what is said of one that is wrong, what is made there."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
import sqlalchemy as sa

from engine import database
from engine.config.model import ZooKeeper
from engine.errors import ConfigError
from engine.local.ledger_place import LEDGER_VARIABLE, ledger_url_of
from engine.migrations.errors import LedgerUnavailable
from tests.migrations.test_ledger import holding, open_ledger


def test_a_password_in_the_url_is_not_shown() -> None:
    with pytest.raises(LedgerUnavailable) as caught:
        open_ledger("postgresql://u:hunter2@127.0.0.1:1/x")
    assert "hunter2" not in str(caught.value)
    assert "ONCLUSTER_LEDGER_URL" in caught.value.hint


def test_a_locked_ledger_is_told_before_the_keeper_session_of_who_waits_is_lost() -> None:
    """Nobody answers Keeper while the database is waited for; `keeper.suspended` comes at two thirds."""
    longest_s = max(database.BUSY_TIMEOUT_S, 2 * database.CONNECT_TIMEOUT_S)
    assert ZooKeeper(hosts=()).session_timeout_ms * 2 / 3 > longest_s * 1000


@pytest.mark.slow
def test_in_postgresql_a_lock_of_somebody_else_is_waited_for_no_longer_than_that(
    postgresql_ledger_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "BUSY_TIMEOUT_S", 1)
    ledger = open_ledger(postgresql_ledger_url)
    holding(ledger)
    engine = sa.create_engine(postgresql_ledger_url.replace("postgresql:", "postgresql+psycopg2:"))
    with engine.connect() as somebody, somebody.begin():
        somebody.execute(sa.text("LOCK TABLE oncluster_fences IN ACCESS EXCLUSIVE MODE"))
        with pytest.raises(LedgerUnavailable, match="lock timeout"):
            ledger.max_fence("c")
        with pytest.raises(LedgerUnavailable, match="lock timeout"):
            ledger.register_fence("c", 2, run_id="new", holder="new")
    assert ledger.max_fence("c") == 1


@pytest.mark.slow
def test_a_postgresql_server_that_takes_connections_and_says_nothing_is_unavailable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As one that is stopped: the system takes connections for it."""
    monkeypatch.setattr(database, "CONNECT_TIMEOUT_S", 2)
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"postgresql://u@127.0.0.1:{server.getsockname()[1]}/x"
        with pytest.raises(LedgerUnavailable, match="timeout expired"):
            open_ledger(url)


@pytest.mark.parametrize(
    "url", ["mysql://h/d", "sqlite://", "sqlite:///:memory:", ":memory:", "nonsense://x", "://"]
)
def test_an_address_that_cannot_hold_a_ledger_says_what_can(url: str, tmp_path: Path) -> None:
    """Also where the environment gives it, which makes paths absolute."""
    with pytest.raises(ConfigError):
        open_ledger(url)
    with pytest.raises(ConfigError):
        open_ledger(ledger_url_of(tmp_path, {LEDGER_VARIABLE: url}))


@pytest.mark.parametrize("password", ["hun@ter2", "hun@ter2:x", "hun:@ter2/x", "hun@ter2/x@y"])
def test_a_password_that_is_not_escaped_is_told_and_no_part_of_it_is_shown(password: str) -> None:
    with pytest.raises(ConfigError, match="%40") as caught:
        open_ledger(f"postgresql://u:{password}@127.0.0.1:1/x")
    assert "ter2" not in str(caught.value)


def test_a_path_is_a_sqlite_file_and_its_folder_is_made(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "ledger.db"
    assert open_ledger(path).ledger_id == open_ledger(f"sqlite:///{path}").ledger_id


def test_reading_makes_no_ledger_and_finds_the_one_that_another_makes_meanwhile(ledger_url: str) -> None:
    ledger = open_ledger(ledger_url)
    assert (ledger.is_made, ledger.records("c"), ledger.max_fence("c"), ledger.runs("c")) == (
        False,
        {},
        0,
        [],
    )
    assert not open_ledger(ledger_url).is_made
    holding(open_ledger(ledger_url))
    assert (ledger.is_made, ledger.max_fence("c")) == (True, 1)
    assert ledger.ledger_id == open_ledger(ledger_url).ledger_id


@pytest.mark.slow
def test_a_ledger_in_a_schema_that_the_role_must_not_use_is_not_missing(postgresql_ledger_url: str) -> None:
    """As after a REVOKE, or for a new role of a PostgreSQL whose `public` is closed."""
    holding(open_ledger(postgresql_ledger_url))
    engine = sa.create_engine(postgresql_ledger_url.replace("postgresql:", "postgresql+psycopg2:"))
    role = engine.url.database
    with engine.begin() as connection:
        connection.execute(sa.text(f"REVOKE ALL ON SCHEMA public FROM PUBLIC; CREATE ROLE {role} LOGIN"))
    url = postgresql_ledger_url.replace("postgres@", f"{role}@")
    with pytest.raises(LedgerUnavailable, match="permission denied for schema public"):
        open_ledger(url)
    with engine.begin() as connection:
        connection.execute(sa.text(f"CREATE SCHEMA {role} AUTHORIZATION {role}"))
        connection.execute(sa.text(f"ALTER ROLE {role} SET search_path = {role}"))
    assert not open_ledger(url).is_made  # a place of its own
