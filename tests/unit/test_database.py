"""A database that is opened again is the one that it was: nothing is compiled anew for it."""

from __future__ import annotations

import shutil
from pathlib import Path

import sqlalchemy as sa

from engine.database import database_engine


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


def test_its_folder_is_made_again_when_somebody_has_removed_it(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "ledger.sqlite"
    for _ in range(2):
        assert compiled(path) == 1
        shutil.rmtree(path.parent)
