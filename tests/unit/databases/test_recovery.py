"""What recovery of a Replicated database does with the tables that are there, and the digest it goes by."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import cast

import pytest

from engine.databases import DatabaseSettings, LocalSchema, digest_of
from engine.databases.paths import DatabasePaths, ReplicaName
from engine.databases.recovery import Plan, plan_recovery, read_snapshot
from engine.errors import SqlError
from engine.keeper.base import Keeper
from engine.keeper.memory import MemoryKeeperServer
from engine.node.databases.begun import BegunEntry
from engine.testing.simulation import SimulationEnv, run_simulation


class OnlyReplicates:
    def replicates(self, text: str) -> bool:
        return "ReplicatedMergeTree" in text


def text(number: int, engine: str = "MergeTree", columns: str = "`k` UInt64") -> str:
    uuid = f"{number:08}-0000-4000-8000-000000000000"
    return f"ATTACH TABLE _ UUID '{uuid}'\n(\n    {columns}\n)\nENGINE = {engine}\n"


def view(number: int, inner: int, select: str = "SELECT 1 AS k") -> str:
    return (
        f"ATTACH MATERIALIZED VIEW _ UUID '{number:08}-0000-4000-8000-000000000000' "
        f"TO INNER UUID '{inner:08}-0000-4000-8000-000000000000'\nAS {select}\n"
    )


def plan(local: Mapping[str, str], wanted: Mapping[str, str]) -> Plan:
    return plan_recovery(local, wanted, cast(LocalSchema, OnlyReplicates()))


def test_the_digest_is_the_sum_of_clickhouses_hashes() -> None:
    """SELECT sipHash64('abc') and sipHash64('abcdef'), asked of chDB."""
    assert digest_of({"a": "bc"}) == 4596069200710135518
    assert digest_of({"a": "bc", "abc": "def"}) == (4596069200710135518 + 13592011187569594951) % 2**64
    assert digest_of({}) == 0


def test_what_is_as_it_should_be_stays() -> None:
    tables = {"a": text(1), "r": text(2, "ReplicatedMergeTree"), "v": view(3, 4), ".inner_id.x": text(4)}
    assert plan(tables, tables) == Plan((), ())


def test_replicated_tables_are_known_by_their_uuid() -> None:
    first, second = text(1, "ReplicatedMergeTree"), text(2, "ReplicatedMergeTree")
    altered = text(1, "ReplicatedMergeTree", "`k` UInt64,\n    `more` Int8")
    assert plan({"a": first}, {"a": altered}) == Plan((), ())
    assert plan({"a": first, "b": second}, {"a": second, "b": altered}) == Plan((("a", "b"), ("b", "a")), ())
    assert plan({"a": first}, {"a": second}) == Plan((), ("a",))


def test_other_tables_that_differ_or_are_not_wanted_go_aside() -> None:
    local = {"same": text(1), "changed": text(2), "gone": text(3)}
    wanted = {"same": text(1), "changed": text(2, columns="`k` Int8"), "new": text(4)}
    assert plan(local, wanted) == Plan((), ("changed", "gone"))


def test_an_inner_table_goes_with_its_view_and_not_before_it() -> None:
    local = {"v": view(3, 4), ".inner_id.x": text(4)}
    assert plan(local, {}) == Plan((), ("v",))
    assert plan(local, {"v": view(3, 4, "SELECT 2 AS k"), ".inner_id.x": text(4)}) == Plan((), ("v",))


def test_a_views_own_replicated_table_goes_and_stays_by_its_uuid() -> None:
    changed, table = view(3, 4, "SELECT 2 AS k"), text(4, "ReplicatedMergeTree")
    local = {"v": view(3, 4), ".inner_id.x": table}
    assert plan(local, {"v": changed, ".inner_id.x": table}) == Plan((), ("v",))
    assert plan(local, {}) == Plan((), ("v", ".inner_id.x"))


def test_definitions_that_change_under_every_look_are_clickhouses_error_709() -> None:
    """SELECT errorCodeToName(709), asked of chDB."""
    paths = DatabasePaths("/databases/d")

    async def main(env: SimulationEnv) -> None:
        server = MemoryKeeperServer(env.fork())
        keeper = await server.connect()
        for path in ("/databases", paths.root, paths.metadata):
            await keeper.create(path)
        await keeper.create(paths.max_log_ptr, b"1")
        assert (await read_snapshot(keeper, paths)).max_log_ptr == 1, "it is read when nobody changes it"
        other = await server.connect()

        class Busy:
            """Another replica commits between two requests of the reader."""

            def __getattr__(self, name: str) -> object:
                return getattr(keeper, name)

            async def children(self, path: str) -> object:
                await other.set(paths.max_log_ptr, b"1")
                return await keeper.children(path)

        with pytest.raises(SqlError) as raised:
            await read_snapshot(cast(Keeper, Busy()), paths)
        assert raised.value.code == 709
        assert raised.value.name == "CANNOT_GET_REPLICATED_DATABASE_SNAPSHOT"

    run_simulation(1, main)


def test_settings_and_names_that_cannot_be_are_refused() -> None:
    assert DatabaseSettings.of({"check_consistency": "false"}).check_consistency is False
    for given, code in (
        ({"nonsense": "1"}, 115),
        ({"logs_to_keep": "0"}, 36),
        ({"logs_to_keep": "many"}, 36),
        ({"max_broken_tables_ratio": "-1"}, 36),
    ):
        with pytest.raises(SqlError) as raised:
            DatabaseSettings.of(given)
        assert raised.value.code == code
    for name in ("r1", "s|r|1", "|r", "s|"):
        with pytest.raises(SqlError):
            ReplicaName.parse(name)


def test_a_mutation_that_was_made_before_a_kill_is_not_made_again(tmp_path: Path) -> None:
    file = tmp_path / "d.begun"
    assert not BegunEntry(file).is_done(7, ["mutation_1.txt"]), "it begins"
    assert not BegunEntry(file).is_done(7, ["mutation_1.txt"]), "killed before: it begins again"
    assert BegunEntry(file).is_done(7, ["mutation_1.txt", "mutation_2.txt"]), "killed behind"
    assert not BegunEntry(file).is_done(8, ["mutation_1.txt", "mutation_2.txt"]), "the same text once more"
    assert BegunEntry(file).is_done(8, ["mutation_2.txt", "mutation_3.txt"]), "chDB forgets old ones"
    file.write_text("{torn")
    assert not BegunEntry(file).is_done(8, ["mutation_3.txt"])
    BegunEntry(file).forget()
    assert not file.exists()
