"""The page's reader, with nothing that answers: it says so in its place, soon, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.errors import ConfigError, SqlError
from engine.operations.overview import Answer, ClusterOverview, PartState, Show
from engine.ports import free_ports
from oncluster_airflow.web.reader import LiveReader
from oncluster_airflow.web.watch import Place

[CLOSED_PORT] = free_ports(1)


def configuration(*hosts: str) -> str:
    replicas = "".join(
        f"<replica><host>{host}</host><port>9000</port><http_host>127.0.0.1</http_host>"
        f"<http_port>{CLOSED_PORT}</http_port></replica>"
        for host in hosts
    )
    return (
        f"<clickhouse><remote_servers><shop><shard>{replicas}</shard></shop></remote_servers>"
        f"<zookeeper><node><host>127.0.0.1</host><port>{CLOSED_PORT}</port></node></zookeeper>"
        "<distributed_ddl><path>/ddl</path></distributed_ddl></clickhouse>"
    )


@pytest.fixture
def place(tmp_path: Path) -> Place:
    (tmp_path / "cluster.xml").write_text(configuration("a", "b"))
    return Place(tmp_path / "cluster.xml", str(tmp_path / "records.db"), str(tmp_path / "ledger.db"))


@pytest.fixture
def reader(place: Place) -> Iterator[LiveReader]:
    made = LiveReader(lambda: place)
    yield made
    made.close()


async def settled(reader: LiveReader) -> ClusterOverview:
    """As soon as every part has been asked for."""
    async with asyncio.timeout(60):
        while True:
            seen = await reader.overview("shop", wait_s=1)
            if PartState.PENDING not in (seen.hosts.state, seen.queue.state, seen.records.state):
                return seen


async def test_each_part_says_what_is_wrong_with_it(reader: LiveReader) -> None:
    seen = await settled(reader)
    assert seen.hosts.value is not None
    assert {host.answer for host in seen.hosts.value.hosts.values()} == {Answer.DOWN}
    assert seen.queue.state is PartState.FAILED
    assert f"Keeper at 127.0.0.1:{CLOSED_PORT} does not answer." in seen.queue.error
    assert seen.records.state is PartState.READY
    assert {item.what for item in seen.stuck} == {
        "The queue cannot be read.",
        "a:9000 and b:9000 do not answer.",
    }
    assert await reader.page("shop", show=Show.ALL, number=1, wait_s=0) is None
    assert await reader.task("shop", "query-0000000001", wait_s=0) is None


async def test_nobody_waits_for_what_is_not_known(reader: LiveReader) -> None:
    seen = await reader.overview("shop", wait_s=0)
    assert seen.queue.state is PartState.PENDING
    assert [shard.hosts for shard in seen.shards] == [("a:9000", "b:9000")]


async def test_a_configuration_that_was_written_anew_is_read_anew(reader: LiveReader, place: Place) -> None:
    await reader.overview("shop", wait_s=0)
    place.config.write_text(configuration("a", "b", "c"))
    os.utime(place.config, ns=(1, 1))  # the clock of a file system may be coarse
    seen = await reader.overview("shop", wait_s=0)
    assert seen.shards[0].hosts == ("a:9000", "b:9000", "c:9000")


async def test_unknown_clusters_and_a_configuration_that_cannot_be_read(
    reader: LiveReader, place: Place
) -> None:
    assert await reader.clusters() == ("shop",)
    with pytest.raises(SqlError, match="nowhere"):
        await reader.overview("nowhere", wait_s=0)
    place.config.write_text("<clickhouse>")
    with pytest.raises(ConfigError):
        await reader.clusters()


async def test_closing_ends_the_thread_and_it_begins_anew_when_asked(reader: LiveReader) -> None:
    for _ in range(2):
        await reader.overview("shop", wait_s=0)
        assert "oncluster-page" in {thread.name for thread in threading.enumerate()}
        await asyncio.to_thread(reader.close)
        assert "oncluster-page" not in {thread.name for thread in threading.enumerate()}


async def test_what_nobody_looks_at_is_let_go(place: Place) -> None:
    reader = LiveReader(lambda: place, idle_s=0.5)
    try:
        await reader.overview("shop", wait_s=0)
        async with asyncio.timeout(60):
            while reader._watches:
                await asyncio.sleep(0.05)
        assert (await reader.overview("shop", wait_s=0)).shards  # and is looked at again
    finally:
        reader.close()


async def test_many_who_ask_at_once_are_one_look(reader: LiveReader) -> None:
    seen = await asyncio.gather(*(reader.overview("shop", wait_s=0) for _ in range(50)))
    assert len({overview.shards for overview in seen}) == 1
    assert len(reader._watches) == 1
