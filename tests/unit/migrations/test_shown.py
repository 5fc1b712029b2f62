"""How `oncluster migrate status` shows migrations on terminals of any width."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.console import Console

from engine.cli import output
from engine.cli.migrate_show import ClusterStatus, show_status
from engine.migrations.files import Direction, MigrationSet
from engine.migrations.states import CellState, MigrationRecord, MigrationState
from engine.names import HostId
from tests.unit.migrations.test_decisions import row

HOSTS = [HostId(f"node0{number}", 9000) for number in range(1, 7)]
DONE, RUNNING, EXPIRED = CellState.DONE, CellState.RUNNING, CellState.EXPIRED


def shown(width: int, *states: CellState, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one migration of two statements; `states` are those of the second."""
    monkeypatch.setattr(output, "console", lambda: Console(width=width, highlight=False))
    rows = [row(DONE, host) for host in HOSTS]
    rows += [row(state, host, statement=2) for state, host in zip(states, HOSTS, strict=True)]
    record = MigrationRecord(1, "t", Direction.UP, 1, MigrationState.RUNNING, 2, "f", tuple(rows))
    files = MigrationSet(Path("shop"), "shop", ())
    show_status([ClusterStatus(files, {1: record})], as_json=False)


@pytest.mark.parametrize(
    ("states", "said"),
    [
        ([DONE] * 6, "6 done"),
        ([DONE] * 3 + [RUNNING, RUNNING, DONE], "4 done; running: node04:9000, node05:9000"),
        ([EXPIRED] * 6, "expired: node01:9000, node02:9000, node03:9000, node04:9000"),
    ],
)
def test_where_columns_of_hosts_are_too_wide_the_hosts_that_are_not_done_are_named(
    states: list[CellState], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shown(80, *states, monkeypatch=monkeypatch)
    table = capsys.readouterr().out.split("1 statement")[0]
    assert said in " ".join(table.split())
    shown(160, *states, monkeypatch=monkeypatch)
    assert said not in capsys.readouterr().out


def test_a_state_is_never_cut_in_two(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for width in range(50, 161):
        shown(width, *[DONE] * 5, RUNNING, monkeypatch=monkeypatch)
        out = capsys.readouterr().out
        assert "running" in out
        assert "node06:9000" in out
