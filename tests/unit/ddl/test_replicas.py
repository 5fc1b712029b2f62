"""Under which names a node declares itself active."""

from __future__ import annotations

import asyncio
from uuid import UUID

import pytest

from engine.ddl.identity import FixedResolver, NodeIdentity
from engine.ddl.own_sessions import OwnSessions
from engine.ddl.replicas import ReplicaMarker
from engine.keeper.base import CreateMode
from engine.keeper.recipes import create_ancestors
from engine.names import HostId
from tests.unit.ddl.support import PATHS, PORT, Bench, host, run, topology

RESOLVER = FixedResolver({"a": "127.0.0.1", "alias": "127.0.0.1", "b": "10.0.0.2", "localhost": "127.0.0.1"})


async def marker(bench: Bench, name: str = "a", *, number: int = 1, **identity: object) -> ReplicaMarker:
    facts = {"host_name": name, "tcp_port": PORT, "server_uuid": UUID(int=number)} | identity
    return ReplicaMarker(
        await bench.keeper(f"{name}{number}"),
        bench.env,
        PATHS,
        NodeIdentity(**facts),  # type: ignore[arg-type]
        RESOLVER,
        OwnSessions(),
    )


async def active(bench: Bench) -> set[str]:
    """Who is, by the directory's name."""
    nodes = bench.server.tree.nodes
    return {
        path.split("/")[-2]
        for path in nodes
        if path.startswith(PATHS.replicas_root) and path.endswith("/active")
    }


def test_a_node_is_active_under_its_own_names_and_no_others_without_asking_dns() -> None:
    async def main(bench: Bench) -> None:
        mine = await marker(bench, interserver_http_host="a-inside")
        await mine.mark(topology("a b", "alias"))
        assert await active(bench) == {"a:9000", "a%2Dinside:9000"}
        await mine.mark_others(topology("a b", "alias"))
        assert await active(bench) == {"a:9000", "a%2Dinside:9000", "alias:9000"}

    run(main)


def test_a_name_that_only_the_queue_knows_is_marked_where_it_is_this_machine_s() -> None:
    """An entry of a cluster that this node does not know may list it so."""

    async def main(bench: Bench) -> None:
        keeper = await bench.keeper()
        for name in ("alias:9000", "alias:9001", "b:9000", "no host id"):
            await create_ancestors(keeper, f"{PATHS.replicas_root}/{name}/x")
        mine = await marker(bench)
        await mine.mark_others(topology("a"))
        assert await active(bench) == {"a:9000", "alias:9000"}

    run(main)


@pytest.mark.parametrize("seed", range(20))
def test_of_two_servers_that_claim_a_loopback_name_at_once_one_gets_it(seed: int) -> None:
    async def main(bench: Bench) -> None:
        markers = [await marker(bench, number=number) for number in (1, 2)]
        localhost = HostId("localhost", PORT)
        claims = await asyncio.gather(*(each.is_claimed_by_us(localhost) for each in markers))
        assert sorted(claims) == [False, True]
        again = await asyncio.gather(*(each.is_claimed_by_us(localhost) for each in markers))
        assert again == claims

    run(main, seed=seed)


def test_a_name_that_another_server_had_is_this_node_s_when_that_is_gone() -> None:
    async def main(bench: Bench) -> None:
        other = await bench.keeper("other")
        await create_ancestors(other, PATHS.replica_active(host("a")))
        await other.create(PATHS.replica_active(host("a")), b"its stamp", mode=CreateMode.EPHEMERAL)
        mine = await marker(bench)
        await mine.mark(topology("a"))
        assert (mine.marked, mine.refused) == (frozenset(), {host("a")})
        await other.close()
        await mine.mark(topology("a"))
        assert (mine.marked, mine.refused) == ({host("a")}, frozenset())

    run(main)
