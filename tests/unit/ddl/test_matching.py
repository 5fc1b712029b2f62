"""Which host of an entry a node is, and where it stands in the cluster."""

from __future__ import annotations

from uuid import UUID

import pytest

from engine.config.model import Cluster, Replica, Shard
from engine.ddl.identity import FixedResolver, NodeIdentity, is_local_address
from engine.ddl.matching import ClusterPlace, HostMatcher, Match, find_place
from engine.env import SystemEnv
from engine.errors import SqlError
from engine.names import HostId
from tests.unit.ddl.support import cluster, host

RESOLVER = FixedResolver(
    {"ch1": "10.0.0.1", "alias": "10.0.0.1", "ch2": "10.0.0.2", "localhost": "127.0.0.1"},
    local=frozenset({"10.0.0.1", "127.0.0.1"}),
)


async def claims_everything(_: HostId) -> bool:
    return True


async def claims_nothing(_: HostId) -> bool:
    return False


def matcher(
    *, host_name: str = "", name: str = "ch1", claims: object = claims_everything, **more: object
) -> HostMatcher:
    identity = NodeIdentity(name, 9000, UUID(int=1), **more)  # type: ignore[arg-type]
    return HostMatcher(identity, RESOLVER, SystemEnv(), host_name=host_name, is_claimed_by_us=claims)  # type: ignore[arg-type]


async def found(matcher: HostMatcher, *hosts: HostId) -> HostId | None:
    return (await matcher.match(hosts)).host


async def test_the_nodes_own_name_needs_no_dns() -> None:
    assert await found(matcher(name="not-in-dns"), host("gone"), host("not-in-dns")) == host("not-in-dns")


async def test_a_name_that_resolves_to_this_machine_is_this_node() -> None:
    assert await found(matcher(name="other"), host("ch2"), host("alias")) == host("alias")


async def test_the_port_has_to_be_one_of_the_nodes() -> None:
    other = HostId("ch1", 9001)
    assert await found(matcher(), other) is None
    assert await found(matcher(tcp_port_secure=9001), other) == other


async def test_the_first_of_two_matches_wins() -> None:
    assert await found(matcher(name="x"), host("alias"), host("ch1")) == host("alias")


async def test_a_loopback_name_belongs_to_the_server_that_claimed_it() -> None:
    assert await found(matcher(claims=claims_everything), host("localhost")) == host("localhost")
    assert await found(matcher(claims=claims_nothing), host("localhost")) is None


async def test_a_configured_host_name_is_the_only_one_that_matches() -> None:
    assert await found(matcher(host_name="alias"), host("ch1"), host("alias")) == host("alias")
    assert await found(matcher(host_name="alias"), host("ch1")) is None


async def test_a_configured_host_name_has_to_be_local() -> None:
    await matcher(host_name="alias").check_host_name()
    for name in ("ch2", "nowhere"):
        with pytest.raises(SqlError) as refusal:
            await matcher(host_name=name).check_host_name()
        assert refusal.value.code == 198


async def test_an_unknown_name_may_be_this_node_as_long_as_nothing_else_matches() -> None:
    assert await matcher().match((host("nowhere"), host("ch2"))) == Match(None, (host("nowhere"),))
    assert await matcher().match((host("nowhere"), host("ch1"))) == Match(host("ch1"))
    assert await matcher().match((HostId("nowhere", 1), host("ch2"))) == Match(None, elsewhere=(host("ch2"),))


@pytest.mark.parametrize(
    ("address", "is_local"),
    [
        ("127.0.0.1", True),
        ("127.0.1.1", True),
        ("127.1.1.0", True),
        ("127.0.0.2", False),
        ("::1", True),
        ("10.0.0.1", True),
        ("10.0.0.2", False),
        ("not an address", False),
    ],
)
def test_local_addresses_are_those_of_the_interfaces_and_few_of_the_loopback_net(
    address: str, is_local: bool
) -> None:
    assert is_local_address(address, frozenset({"10.0.0.1", "127.0.0.1"})) is is_local


async def place(definition: Cluster | None, me: HostId, database: str = "") -> ClusterPlace:
    return await find_place(
        definition,
        me,
        task="query-0000000000",
        cluster_name="c",
        query_database=database,
        resolver=RESOLVER,
        ports=frozenset({9000}),
    )


async def test_the_place_is_found_by_name() -> None:
    found = await place(cluster("ch2", "ch1 other"), host("ch1"))
    assert (found.shard.number, found.replica.host, found.is_circular) == (2, "ch1", False)


async def test_the_place_is_found_by_address_under_another_spelling() -> None:
    assert (await place(cluster("ch2 alias"), host("ch1"))).replica.host == "alias"


def circular(*databases: str) -> Cluster:
    return Cluster(
        "c", tuple(Shard(n + 1, (Replica("ch1", 9000, name),)) for n, name in enumerate(databases))
    )


async def test_in_a_circular_cluster_the_database_tells_the_replicas_apart() -> None:
    found = await place(circular("r1", "r2"), host("ch1"), "r2")
    assert (found.shard.number, found.is_circular) == (2, True)


@pytest.mark.parametrize(
    ("definition", "database"),
    [
        (None, ""),
        (cluster("ch2"), ""),
        (cluster("ch1 ch1"), ""),
        (cluster("alias", "alias", name="c"), ""),
        (circular("r1", "r2"), ""),
        (circular("r1", "r2"), "r3"),
        (circular("r1", "r1"), "r1"),
    ],
    ids=["no cluster", "not a member", "twice", "twice by address", "no database", "other", "same twice"],
)
async def test_a_place_that_is_missing_or_double_is_error_371(
    definition: Cluster | None, database: str
) -> None:
    with pytest.raises(SqlError) as refusal:
        await place(definition, host("ch1"), database)
    assert refusal.value.code == 371
