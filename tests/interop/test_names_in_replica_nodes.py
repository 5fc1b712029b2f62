"""Our nodes write the host's name into their replica's own znode, which ClickHouse leaves empty: 18.16 does
not mind, whatever it does with the replica."""

from __future__ import annotations

from engine.keeper.base import Keeper
from engine.testing.clickhouse_server import RealClickHouse
from tests.interop.cluster import RealQueue


async def _named(keeper: Keeper, root: str) -> dict[str, bytes]:
    """Give every replica a value, as a node does when it begins a term."""
    names = (await keeper.children(f"{root}/replicas")).names
    for name in names:
        await keeper.set(f"{root}/replicas/{name}", b"node01:9000")
    return {name: (await keeper.get(f"{root}/replicas/{name}")).data for name in names}


async def _insert(real: RealQueue, at: RealClickHouse, number: int) -> None:
    await at.query(f"INSERT INTO r (id, day) VALUES ({number}, '2026-01-01')")
    for server in real.servers:
        await real.eventually(server, f"SELECT count() FROM r WHERE id = {number}", "1\n")


async def test_a_real_server_replicates_restarts_clones_drops_and_creates_beside_them(start_real) -> None:
    real: RealQueue = await start_real(2)
    one, two = real.servers
    root = f"{real.queue.path}/named"
    create = (
        f"CREATE TABLE r (id UInt64, day Date) ENGINE = ReplicatedMergeTree('{root}', '%s', day, id, 8192)"
    )
    for number, server in enumerate(real.servers, start=1):
        await server.query(create % f"r{number}")
    named = await _named(real.keeper, root)
    assert named == {"r1": b"node01:9000", "r2": b"node01:9000"}
    await _insert(real, one, 1)

    await two.stop()
    await one.query("INSERT INTO r (id, day) VALUES (2, '2026-01-01')")
    await real.keeper.set(f"{root}/replicas/r2/is_lost", b"1")
    await two.start()  # it clones the other one
    await _insert(real, two, 3)
    await real.eventually(two, "SELECT groupArray(id) FROM (SELECT id FROM r ORDER BY id)", "[1,2,3]\n")
    await one.query("OPTIMIZE TABLE r FINAL")
    await real.eventually(two, "SELECT count() FROM system.parts WHERE table = 'r' AND active", "1\n")
    for name, value in named.items():
        assert (await real.keeper.get(f"{root}/replicas/{name}")).data == value

    await two.query("DROP TABLE r")
    assert (await real.keeper.children(f"{root}/replicas")).names == ("r1",)
    await two.query(create % "r2")
    await _insert(real, two, 4)
    await _named(real.keeper, root)
    await two.query("DROP TABLE r")
    await one.query("DROP TABLE r")
    assert await real.keeper.exists(root) is None
