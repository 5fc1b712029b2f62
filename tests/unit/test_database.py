"""A database that is opened again is the one that it was: nothing is compiled anew for it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import sqlalchemy as sa

from engine.database import Database, Tables, database_engine


def compiled(url: Path | str) -> int:
    """How many statements have been compiled for the engine, which has run one."""
    engine = database_engine(url, what="ledger")
    with engine.connect() as connection:
        assert connection.scalar(sa.select(sa.literal(1))) == 1
    assert engine._compiled_cache is not None
    return len(engine._compiled_cache)


def test_a_statement_is_compiled_once_however_often_the_database_is_opened(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    assert [compiled(path), compiled(path), compiled(f"sqlite:///{path}")] == [1, 1, 1]
    assert database_engine(path, what="ledger") is database_engine(path, what="records")
    assert database_engine(tmp_path / "other.sqlite", what="ledger") is not database_engine(
        path, what="ledger"
    )


TABLES = Tables(
    lambda connection: sa.inspect(connection).has_table("t"),
    lambda connection: connection.execute(sa.text("CREATE TABLE IF NOT EXISTS t (x int)")),
)


def opened(path: Path) -> Database:
    return Database(database_engine(path, what="ledger"), lambda error, _: ValueError(error), TABLES)


def test_what_is_not_there_reads_as_empty_and_the_first_write_makes_it(tmp_path: Path) -> None:
    database = opened(tmp_path / "folder" / "ledger.sqlite")
    with database.reading() as connection:
        assert connection.execute(sa.text("SELECT * FROM t")).all() == []
    assert list(tmp_path.iterdir()) == []
    with database.writing() as connection:
        connection.execute(sa.text("INSERT INTO t VALUES (7)"))
    with database.reading() as connection:
        assert connection.scalar(sa.text("SELECT x FROM t")) == 7


def test_its_folder_is_made_again_when_somebody_has_removed_it(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "ledger.sqlite"
    for _ in range(2):
        opened(path).make()
        assert opened(path).is_made
        shutil.rmtree(path.parent)


def test_a_folder_that_cannot_be_made_is_told_by_the_first_write() -> None:
    with pytest.raises(ValueError, match="No such file or directory: '/proc/oncluster'"):
        opened(Path("/proc/oncluster/ledger.sqlite")).make()


def test_a_place_that_cannot_be_looked_at_is_not_taken_for_empty(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="Not a directory"), opened(tmp_path / "file" / "l.db").reading():
        pass
