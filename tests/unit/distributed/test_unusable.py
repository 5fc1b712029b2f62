"""A node starts, serves everything else and says why when what it kept of a Distributed table is unusable."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from engine.distributed.spool_table import SpoolBlock, SpoolOptions, TableSpool
from engine.errors import Code, SqlError
from engine.testing.spool_disk import ModelDisk
from tests.unit.distributed.test_select_remembered import World, world
from tests.unit.distributed.test_select_shapes import bench
from tests.unit.distributed.test_spool_disks import HEAD, rows

__all__ = ["bench", "world"]


def start_again(world: World, spoil: Callable[[Path, str], None]) -> None:
    """`spoil` is given the directory of all records, and the UUID of the table `bad`."""
    world.make("bad")
    uuid = next(record.uuid for record in world.node.tables.catalog.all() if record.name.table == "bad")
    world.call(world.node.stop())
    spoil(world.bench.pool.path / "oncluster" / "distributed", str(uuid))
    world.call(world.node.start())


def damaged_definition(directory: Path, uuid: str) -> None:
    (directory / f"{uuid}.json").write_text("{")


def directory_for_definition(directory: Path, uuid: str) -> None:
    (directory / f"{uuid}.json").unlink()
    (directory / f"{uuid}.json").mkdir()


def file_for_directory(directory: Path, uuid: str) -> None:
    (directory / uuid).write_text("")


@pytest.mark.slow
@pytest.mark.parametrize("spoil", [damaged_definition, directory_for_definition])
def test_a_definition_that_cannot_be_read_keeps_one_table_from_use_and_nothing_else(
    world: World, spoil: Callable[[Path, str], None]
) -> None:
    whole = world.ask("SELECT count() FROM events")
    start_again(world, spoil)
    assert world.ask("SELECT count() FROM events") == whole
    # In chDB it is a table like any other: it must neither look empty nor swallow rows.
    for sql in (
        "SELECT count() FROM bad",
        "SELECT count() FROM events JOIN bad USING id",
        "INSERT INTO bad (id) SELECT 1",
        "TRUNCATE TABLE bad",
        "CREATE TABLE copy ENGINE = Buffer(d, bad, 1, 1, 1, 1, 1, 1, 1) AS bad",
    ):
        with pytest.raises(SqlError) as refused:
            world.ask(sql)
        assert refused.value.code in (Code.CORRUPTED_DATA, Code.NOT_IMPLEMENTED), sql
        assert "bad" in refused.value.message
    [row] = world.call(world.node._spools.rows())
    assert (row.table.table, row.facts.is_blocked) == ("bad", True)
    assert "cannot be read" in row.facts.last_exception
    if spoil is damaged_definition:
        world.ask("DROP TABLE bad SYNC")
        world.make("bad")
        assert world.ask("SELECT count() FROM bad") == whole


def test_a_spool_that_cannot_be_used_refuses_rows_of_its_table_and_nothing_else(world: World) -> None:
    start_again(world, file_for_directory)
    background = {"prefer_localhost_replica": "0"}
    with pytest.raises(SqlError, match="Not a directory"):
        world.ask("INSERT INTO bad (id) VALUES (1)", settings=background)
    [row] = world.call(world.node._spools.rows())
    assert row.table.table == "bad" and "Not a directory" in row.facts.last_exception
    # The directory is repaired: no new start is needed.
    directory, _, uuid = row.data_path.rstrip("/").rpartition("/")
    (Path(directory) / uuid).unlink()
    world.ask("SYSTEM STOP DISTRIBUTED SENDS bad")
    world.ask("INSERT INTO bad (id) VALUES (1)", settings=background)
    assert sum(row.facts.data_files for row in world.call(world.node._spools.rows())) == 1
    world.ask("TRUNCATE TABLE bad")


class OneUnreadable(ModelDisk):
    """Of a spool with two directories."""

    is_readable = False

    def names(self, directory: str) -> list[str]:
        if directory == "shard1_all_replicas" and not self.is_readable:
            raise PermissionError(13, "Permission denied")
        return list(super().names(directory))


async def test_one_directory_that_cannot_be_read_leaves_the_others_to_be_sent() -> None:
    disk = OneUnreadable(random.Random(1))
    disk.is_readable = True
    spool = TableSpool(disk, SpoolOptions())
    spool.load()
    await spool.put([SpoolBlock(("shard1_all_replicas", "shard2_all_replicas"), HEAD, rows())])
    disk.is_readable = False
    again = TableSpool(disk, SpoolOptions())
    assert list(again.load()) == ["shard1_all_replicas", "shard2_all_replicas"]
    assert list(again.pending("shard2_all_replicas")) == [1]
    # A new number could be one that is taken.
    with pytest.raises(SqlError, match="Permission denied"):
        await again.put([SpoolBlock(("shard2_all_replicas",), HEAD, rows())])
    disk.is_readable = True
    await again.put([SpoolBlock(("shard2_all_replicas",), HEAD, rows())])
    assert list(again.pending("shard2_all_replicas")) == [1, 2]
