"""What the tasks `lint`, `plan` and `rehearse` of a migration DAG say before any host is told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine.config.load import load_node_config
from engine.migrations.files import load_folder
from tests.airflow.migration_support import FIRST, SECOND, Run

pytestmark = pytest.mark.slow


def test_a_gap_in_the_versions_is_named_by_the_plan(folder: Path, hosts: Any) -> None:
    from oncluster_airflow.errors import TaskRefused

    (folder / "0004_later.up.sql").write_text("CREATE DATABASE IF NOT EXISTS later;")
    with pytest.raises(TaskRefused, match=r"2 → 4"):
        Run(folder).execute("plan")


def test_gaps_that_the_form_allows_stop_neither_lint_nor_plan(folder: Path, hosts: Any) -> None:
    from oncluster_airflow.errors import TaskRefused

    (folder / "0004_later.up.sql").write_text("CREATE DATABASE IF NOT EXISTS later;")
    (folder / "0004_later.down.sql").write_text("DROP DATABASE IF EXISTS later;")
    with pytest.raises(TaskRefused, match=r"version 4 follows 2.*allow=version-gap"):
        Run(folder).execute("lint")
    run = Run(folder, allow_gaps=True)
    run.execute("lint")
    run.execute("plan")
    planned = run.xcoms["plan", "plan"]["migrations"]
    assert [migration["version"] for migration in planned] == [1, 2, 4]


def test_lint_fails_for_a_cluster_that_is_not_configured(folder: Path, tmp_path: Path) -> None:
    from oncluster_airflow.errors import TaskRefused

    other = folder.rename(folder.with_name("no_such_cluster"))
    with pytest.raises(TaskRefused, match="no_such_cluster"):
        Run(other).execute("lint")


def test_a_rehearsal_that_fails_stops_the_run_before_any_host_sees_it(folder: Path, hosts: Any) -> None:
    from oncluster_airflow.errors import TaskRefused

    (folder / "0003_wrong.up.sql").write_text("ALTER TABLE shop.orders ADD COLUMN x NoSuchType;")
    (folder / "0003_wrong.down.sql").write_text("ALTER TABLE shop.orders DROP COLUMN IF EXISTS x;")
    run = Run(folder)
    run.execute("plan")
    with pytest.raises(TaskRefused, match="NoSuchType"):
        run.execute("rehearse")
    assert hosts.entries() == []


def test_a_rehearsal_that_goes_well_says_how_much_was_rehearsed(folder: Path) -> None:
    assert Run(folder).execute("rehearse") == {"rehearsed": 10, "not_rehearsed": 0}


def test_what_is_applied_already_is_not_rehearsed_again(folder: Path, hosts: Any) -> None:
    done = Run(folder).begin()
    done.statement(FIRST)
    done.statement(SECOND)
    done.execute("close")
    (folder / "0003_note.up.sql").write_text("ALTER TABLE shop.orders ADD COLUMN IF NOT EXISTS note String;")
    run = Run(folder, "manual__2")
    run.execute("plan")
    # The ground, two statements; and up, and up again, of the new one.
    assert run.execute("rehearse") == {"rehearsed": 4, "not_rehearsed": 0}


def test_lint_asks_the_real_parser(folder: Path) -> None:
    from oncluster_airflow.errors import TaskRefused

    (folder / "0003_wrong.up.sql").write_text("CREATE TABLE IF NOT EXISTS shop.t (id UInt64 ENGINE = Memory;")
    with pytest.raises(TaskRefused, match=r"0003_wrong\.up\.sql"):
        Run(folder).execute("lint")


ROOT = Path(__file__).resolve().parents[2]


def test_the_folder_of_the_demo_and_its_configuration_fit() -> None:
    config = load_node_config(ROOT / "config" / "cluster.xml")
    for folder in sorted((ROOT / "migrations").iterdir()):
        assert load_folder(folder).cluster in config.topology.clusters
