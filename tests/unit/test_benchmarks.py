"""What every benchmark ends with."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks._table import Better, Report, Row


def test_the_figures_are_printed_and_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = Report("keeper")
    report.add(Row("creates", "1/s", ours=1200.0, better=Better.HIGHER))
    report.aim("more than etcd", met=None)
    report.finish(tmp_path / "new" / "figures.json")
    assert "1,200" in capsys.readouterr().out
    [row] = json.loads((tmp_path / "new" / "figures.json").read_text())
    assert (row["name"], row["ours"]) == ("creates", 1200.0)
