"""Reports of loads: their form, and whether their counts add up."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from engine.errors import (
    Corrupt,
)
from engine.etl.report import LoadReport, TableReport
from tests.unit.etl.loads import FLIGHTS, REPORT


@pytest.mark.parametrize(
    ("mode", "read", "warns"), [("overwrite", 0, True), ("overwrite", 12, False), ("append", 0, False)]
)
def test_months_that_were_replaced_by_nothing_are_warned_of(mode: str, read: int, warns: bool) -> None:
    warning = replace(REPORT, mode=mode, read=read).emptied
    assert ("no line of 2013-01-01 to 2013-01-31" in warning) is warns


def test_a_report_reads_back_as_it_was_written() -> None:
    appended = replace(REPORT, tables=(replace(FLIGHTS, exact=False),))
    for report in (REPORT, appended):
        assert LoadReport.from_json(report.to_json()) == report
    assert REPORT.problems == ()


@pytest.mark.parametrize(
    ("report", "problem"),
    [
        (replace(REPORT, quarantined=1), "read 12 rows, but wrote 10 and put aside 1"),
        (replace(REPORT, tables=(replace(FLIGHTS, rows=11),)), "11 rows, but its shards have 4, 6"),
        (replace(REPORT, tables=()), "no table was loaded"),
    ],
)
def test_counts_that_do_not_add_up_are_named(report: LoadReport, problem: str) -> None:
    assert any(problem in found for found in report.problems)


def test_a_table_that_stands_on_each_shard_in_full_is_not_summed() -> None:
    airlines = TableReport("d.airlines", "d.airlines", 16, {1: 16, 2: 16})
    assert replace(REPORT, tables=(FLIGHTS, airlines)).problems == ()


@pytest.mark.parametrize("text", ["", "[]", '{"version": 2}', '{"version": 1, "job_id": "j"}', "{"])
def test_a_report_that_cannot_be_read_is_no_success(tmp_path: Path, text: str) -> None:
    file = tmp_path / "report.json"
    with pytest.raises(Corrupt, match="left no report"):
        LoadReport.read_file(file)
    file.write_text(text)
    with pytest.raises(Corrupt):
        LoadReport.read_file(file)
