"""Requests for loads: what can be meant, and which of them are the same job."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Any

import pytest

from engine.errors import (
    ConfigError,
)
from engine.etl.request import LoadMode, job_id_from, parse_day, parse_mode
from tests.unit.etl.loads import request


def test_the_same_request_is_the_same_job_and_another_is_another() -> None:
    others = [
        request(last=date(2013, 2, 1)),
        request(mode=LoadMode.APPEND),
        request(cluster="d"),
        request(source=Path("/")),
        request(mode=LoadMode.APPEND, source=Path("/")),
        request(first=date(2013, 1, 31)),
    ]

    assert request().job_id == request().job_id
    assert len({request().job_id, *(other.job_id for other in others)}) == 7


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"last": date(2012, 12, 31)}, "before the first"),
        ({"source": Path("/nowhere")}, "no folder /nowhere"),
        ({"job_id": "a b"}, "no job id"),
        ({"job_id": "../x"}, "no job id"),
    ],
)
def test_a_request_that_cannot_be_meant_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        request(**changes)


def test_days_and_modes_that_are_none_are_refused_with_the_way_to_write_them() -> None:
    with pytest.raises(ConfigError, match=r"--from is no date: '1\.2\.2013'"):
        parse_day("1.2.2013", what="--from")
    with pytest.raises(ConfigError) as refused:
        parse_mode("replace")
    assert "overwrite, append" in refused.value.hint


def test_files_that_have_changed_are_another_load_where_that_replaces_rows(tmp_path: Path) -> None:
    """1. A folder is loaded. 2. A line of it is corrected. 3. The same days are loaded again."""
    flights = tmp_path / "flights.csv"
    flights.write_text("a\n")
    before = request(source=tmp_path), request(source=tmp_path, mode=LoadMode.APPEND)
    assert request(source=tmp_path).job_id == before[0].job_id
    flights.write_text("another\n")
    assert request(source=tmp_path).job_id != before[0].job_id
    appended = request(source=tmp_path, mode=LoadMode.APPEND)
    assert appended.job_id == before[1].job_id, "its rows would be there twice"


def test_names_of_runs_become_job_ids_that_differ_where_the_names_do() -> None:
    names = ["demo__1", "manual__2013-01-01T00:00:00+00:00", "a b", "a_b", "a/b", "x" * 300, "x" * 301]
    ids = [job_id_from(name) for name in names]

    assert ids[:2] == names[:2]
    assert len(set(ids)) == len(names)
    for job_id in ids:
        request(job_id=job_id)
