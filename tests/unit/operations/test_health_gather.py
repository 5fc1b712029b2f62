"""Health: gathering from nodes that answer, are slow, refuse, or talk nonsense, and from Keeper."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from engine.config.model import ZooKeeper
from engine.ddl.entry import DDLLogEntry
from engine.errors import Code, KeeperUnavailable, NoAuth, NodeUnavailable, ReplyLost, SqlError
from engine.keeper.base import Create
from engine.keeper.recipes import create_ancestors
from engine.operations.finding import FindingKind, Severity
from engine.operations.health import Depth, Metric, check_health, record_health
from engine.operations.health.ask_keeper_servers import ask_keeper_servers, parse_mntr, parse_srvr
from engine.operations.health.facts import Gap
from tests.unit.operations.health_support import PATH, FakeNode, register, shards_known
from tests.unit.operations.support import CLUSTER, HOSTS, simulated, site

K = FindingKind


def looked(tmp_path, change=lambda nodes: None, *, prepare=None, look=check_health):
    """What a check of four nodes says; n1 and n2 have a replica of `d.t`."""

    async def main(env, server):
        keeper = await server.connect()
        nodes = {host: FakeNode(host.host) for host in HOSTS}
        for host in HOSTS[:2]:
            nodes[host].replica()
            nodes[host].answers.append(("now64", lambda: [(int(env.now_s() * 1000),)]))
            await register(keeper, host.host)
        for host in HOSTS[2:]:
            nodes[host].answers.append(("now64", lambda: [(int(env.now_s() * 1000),)]))
        change([nodes[host] for host in HOSTS])
        where = site(tmp_path, env, keeper, clients=nodes)
        if prepare is not None:
            await prepare(where)
        return await look(where)

    return simulated(main)


def kinds(report):
    return [(finding.kind, finding.host) for finding in report.findings]


def test_a_healthy_cluster_is_gathered_whole(tmp_path):
    report = looked(tmp_path)
    assert report.findings == () and report.notes == ()
    assert [len(host.replicas) for host in report.facts.hosts.values()] == [1, 1, 0, 0]
    assert report.facts.keeper.tables[PATH].replicas.keys() == {"n1", "n2"}
    assert report.facts.keeper.clock is not None


def test_a_table_that_a_server_of_keeper_does_not_know_yet_is_not_called_lost(tmp_path):
    """The hosts know of it, and Keeper's leader, but the session is at another server."""

    async def main(env, server):
        keeper = await server.connect()
        nodes = {host: FakeNode(host.host) for host in HOSTS}
        behind = await server.connect()
        server.stale_reads(behind.session_id)
        for host in HOSTS[:2]:
            nodes[host].replica()
            await register(keeper, host.host)
        return await check_health(site(tmp_path, env, behind, clients=nodes))

    report = simulated(main)
    assert report.facts.keeper.tables[PATH].replicas.keys() == {"n1", "n2"}
    assert {kind for kind, _ in kinds(report)}.isdisjoint({K.KEEPER_METADATA_LOST, K.SESSION_LOST})


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (NodeUnavailable("connection refused"), K.HOST_DOWN),
        (ReplyLost("cut off"), K.HOST_DOWN),
        (SqlError(Code.UNKNOWN_EXCEPTION, "<html>nginx"), K.NOT_CHECKED),
        (KeyError("meta"), K.NOT_CHECKED),
        (SqlError(Code.AUTHENTICATION_FAILED, "wrong password"), K.NOT_CHECKED),
    ],
)
def test_a_host_that_does_not_answer_properly_is_a_finding_and_the_others_are_looked_at(
    tmp_path, error, expected
):
    def change(nodes):
        nodes[0].version_ = error
        nodes[1].replica(queue_size=99)

    assert sorted(kinds(looked(tmp_path, change))) == sorted([(expected, "n1:9000"), (K.LAGGING, "n2:9000")])


def test_a_host_whose_user_s_quota_is_used_up_is_not_said_to_let_nobody_in(tmp_path):
    def change(nodes):
        nodes[0].version_ = SqlError(201, "Quota for user `u` for 1h has been exceeded: queries = 6/5.")

    [finding] = looked(tmp_path, change).findings
    assert finding.kind is K.NOT_CHECKED
    assert finding.what.startswith("n1:9000 answers with an error: Quota for user")


def test_a_host_that_hangs_costs_the_check_its_patience_and_no_more(tmp_path):
    def change(nodes):
        nodes[0].version_ = lambda: asyncio.sleep(10_000)

    async def look(where):
        began_s = where.env.monotonic_s()
        return await check_health(where), where.env.monotonic_s() - began_s

    report, took_s = looked(tmp_path, change, look=look)
    assert (K.HOST_DOWN, "n1:9000") in kinds(report)
    assert took_s < 2 * 5


def test_one_system_table_that_hangs_leaves_the_others_of_that_host(tmp_path):
    def change(nodes):
        nodes[0].answers.append((r"system\.disks", lambda: asyncio.sleep(10_000)))
        nodes[0].replica(queue_size=99)

    report = looked(tmp_path, change)
    assert kinds(report) == [(K.LAGGING, "n1:9000"), (K.NOT_CHECKED, "n1:9000")]
    assert "system.disks" in report.findings[1].what


def test_a_permission_that_lacks_is_named_and_no_table_is_called_lost_for_it(tmp_path):
    def change(nodes):
        nodes[0].answers.append(
            (r"FROM system\.replicas", SqlError(Code.ACCESS_DENIED, "Not enough privileges"))
        )

    report = looked(tmp_path, change)
    assert kinds(report) == [(K.NOT_CHECKED, "n1:9000")]
    assert "GRANT SELECT ON system.replicas" in report.findings[0].advice


def test_an_old_server_is_asked_only_for_what_it_has(tmp_path):
    def change(nodes):
        for node in nodes[:2]:
            node.version_ = (18, 16, 1)
            node.answers = [(r"now\(\)", [(1_000,)])]
            for table in ("distribution_queue", "disks", "detached_parts"):
                del node.columns[table]
            node.columns["mutations"] = "database table mutation_id command create_time parts_to_do is_done"
            node.columns["replicas"] = node.columns["replicas"].replace("readonly_duration", "")
            node.replica(is_readonly=1)

    report = looked(tmp_path, change)
    first = report.facts.hosts[HOSTS[0]]
    assert {gap.what for gap in first.not_said if gap.gap is Gap.ABSENT} == {
        "system.distribution_queue",
        "system.disks",
        "system.detached_parts",
    }
    assert first.replicas[0].is_readonly and first.replicas[0].readonly_s is None
    assert any("system.disks was not checked on n1:9000, n2:9000" in note for note in report.notes)


def test_a_node_is_asked_why_a_table_is_read_only(tmp_path):
    def change(nodes):
        nodes[0].replica(is_readonly=1, readonly_duration=60, zookeeper_exception="columns differ")

    report = looked(tmp_path, change)
    assert report.facts.hosts[HOSTS[0]].replicas[0].readonly_reason == "columns differ"


def test_without_keeper_hosts_are_still_looked_at(tmp_path):
    async def look(where):
        where.keeper_or_none = None
        where.keeper_error = KeeperUnavailable("No server answers.")
        return await check_health(where)

    def change(nodes):
        nodes[0].replica(is_readonly=1, is_session_expired=1)
        nodes[1].tables["disks"] = [{"name": "d", "path": "/", "free_space": 1, "total_space": 100}]

    report = looked(tmp_path, change, look=look)
    assert sorted(kinds(report)) == [
        (K.DISK_FULL, "n2:9000"),
        (K.KEEPER_DOWN, ""),
        (K.SESSION_LOST, "n1:9000"),
    ]


def test_keeper_that_hangs_is_down_after_the_patience(tmp_path):
    class Hanging:
        def __getattr__(self, name):
            return lambda *_, **__: asyncio.sleep(10_000)

    async def look(where):
        where.keeper_or_none = Hanging()
        return await check_health(where)

    report = looked(tmp_path, look=look)
    assert kinds(report) == [(K.KEEPER_DOWN, "")]


def test_keeper_is_asked_in_as_many_batches_for_many_tables_as_for_few(tmp_path):
    def counted(number):
        calls = Counter()

        class Counting:
            def __init__(self, keeper):
                self._keeper = keeper

            def __getattr__(self, name):
                method = getattr(self._keeper, name)
                if not callable(method):
                    return method

                def call(*arguments, **named):
                    calls[name] += 1
                    return method(*arguments, **named)

                return call

        async def look(where):
            where.keeper_or_none = Counting(where.keeper_or_none)
            return await check_health(where)

        def change(nodes):
            for node in nodes[:2]:
                node.tables["replicas"] = [
                    node.replica() | {"table": f"t{n}", "zookeeper_path": f"/tables/t{n}"}
                    for n in range(number)
                ]

        report = looked(tmp_path, change, look=look)
        assert len(report.facts.keeper.tables) == number
        return calls

    assert counted(3) == counted(300)


def test_ten_thousand_nodes_in_the_log_are_read_in_one_listing(tmp_path):
    async def prepare(where):
        for begin in range(0, 10_000, 1000):
            numbers = range(begin, begin + 1000)
            await where.keeper.multi([Create(f"{PATH}/log/log-{number:010}") for number in numbers])

    report = looked(tmp_path, prepare=prepare)
    assert report.facts.keeper.tables[PATH].log_max_index == 9999
    assert {(f.kind, f.evidence["log_lag"]) for f in report.findings} == {(K.LAGGING, 9998)}


def test_entries_of_the_ddl_queue_that_wait_are_found_and_unreadable_ones_wait_for_nobody(tmp_path):
    async def prepare(where):
        queue = where.queue.paths
        entries = {
            "query-0000000001": DDLLogEntry(version=1, query="DROP TABLE a", hosts=HOSTS[:2]).to_bytes(),
            "query-0000000002": DDLLogEntry(version=1, query="DROP TABLE b", hosts=HOSTS[:2]).to_bytes(),
            "query-0000000003": b"garbage",
        }
        await create_ancestors(where.keeper, f"{queue.root}/x")
        for name, data in entries.items():
            for path, value in (
                (queue.entry(name), data),
                (queue.finished(name), b""),
                (queue.active(name), b""),
            ):
                await where.keeper.create(path, value)
        for host in HOSTS[:2]:
            await where.keeper.create(queue.finished("query-0000000001", host), b"0\n")
        await where.keeper.create(queue.active("query-0000000002", HOSTS[1]))
        await where.env.sleep(301)

    report = looked(tmp_path, prepare=prepare)
    [finding] = report.findings
    assert (finding.kind, finding.subject) == (K.STUCK_DDL, "query-0000000002")
    assert (finding.evidence["idle_hosts"], finding.evidence["running_hosts"]) == (1, 1)


def test_reading_all_data_finds_damage(tmp_path):
    def change(nodes):
        nodes[1].answers.append((r"SELECT \* FROM `d`\.`t`", SqlError(40, "Checksum doesn't match")))

    async def look(where):
        return await check_health(where, depth=Depth.READS_DATA)

    assert kinds(looked(tmp_path, change)) == []
    assert kinds(looked(tmp_path, change, look=look)) == [(K.BROKEN_PARTS, "n2:9000")]


def test_a_clock_that_is_an_hour_off_is_found(tmp_path):
    def change(nodes):
        right = nodes[0].answers.pop()[1]
        nodes[0].answers.append(("now64", lambda: [(right()[0][0] + 3_600_000,)]))

    report = looked(tmp_path, change)
    assert kinds(report) == [(K.CLOCK_SKEW, "n1:9000")]
    assert "3600.0 s ahead of Keeper's" in report.findings[0].what


# --- records ------------------------------------------------------------------------------------------------


def test_findings_and_figures_are_kept_and_old_figures_forgotten(tmp_path):
    async def look(where):
        node = where.clients[HOSTS[0]]
        node.replica(queue_size=99)
        first = record_health(where, await check_health(where))
        await where.env.sleep(15 * 24 * 3600)
        node.replica(queue_size=0)
        second = record_health(where, await check_health(where))
        return first, second, where.records.samples(CLUSTER, Metric.QUEUE_SIZE)

    first, second, samples = looked(tmp_path, look=look)
    assert [record.finding.kind for record in first.new] == [K.LAGGING]
    assert [record.finding.kind for record in second.resolved] == [K.LAGGING]
    assert {(sample.host, sample.value) for sample in samples} == {(f"n{n}:9000", 0) for n in range(1, 5)}


def test_a_finding_of_a_host_that_has_fallen_silent_is_not_resolved(tmp_path):
    async def look(where):
        node = where.clients[HOSTS[0]]
        node.replica(queue_size=99)
        record_health(where, await check_health(where))
        node.version_ = NodeUnavailable("connection refused")
        return record_health(where, await check_health(where))

    seen = looked(tmp_path, look=look)
    assert [record.finding.kind for record in seen.continuing] == [K.LAGGING]
    assert seen.resolved == ()


@pytest.mark.parametrize(
    "error", [SqlError(241, "Memory limit exceeded"), SqlError(201, "Quota exceeded"), ReplyLost("cut off")]
)
def test_a_finding_of_what_a_host_has_not_said_this_time_is_not_resolved(tmp_path, error):
    async def look(where):
        node = where.clients[HOSTS[0]]
        node.replica(queue_size=99)
        record_health(where, await check_health(where))
        node.answers.insert(0, (r"FROM system\.replicas", error))
        return record_health(where, await check_health(where))

    seen = looked(tmp_path, look=look)
    assert seen.resolved == ()
    assert K.LAGGING in {record.finding.kind for record in seen.continuing}


async def _keeper_is_away(where):
    where.keeper_or_none = None
    where.keeper_error = KeeperUnavailable("No server answers.")


async def _queue_is_forbidden(where):
    reading = where.keeper.children

    async def children(path, *args, **more):
        if path == where.queue.paths.root:
            raise NoAuth(path)
        return await reading(path, *args, **more)

    where.keeper.children = children


@pytest.mark.parametrize("happens", [_keeper_is_away, _queue_is_forbidden])
def test_what_only_keeper_can_say_is_not_resolved_while_it_was_not_asked(tmp_path, happens):
    """1. An entry waits, and a replica is lost. 2. Keeper is away, or the queue may not be read. 3. It is
    there again, and by then the entry is done."""

    async def look(where):
        queue = where.queue.paths
        await create_ancestors(where.keeper, f"{queue.root}/x")
        entry = DDLLogEntry(version=1, query="DROP TABLE b", hosts=HOSTS[:1]).to_bytes()
        await where.keeper.create(queue.entry("query-0000000001"), entry)
        await where.keeper.create(queue.finished("query-0000000001"))
        await where.keeper.remove(f"{PATH}/replicas/n2/is_active")
        where.clients[HOSTS[1]].tables["replicas"] = []
        await where.env.sleep(301)
        first = record_health(where, await check_health(where))
        keeper, reading = where.keeper_or_none, where.keeper.children
        await happens(where)
        second = record_health(where, await check_health(where))
        where.keeper_or_none, where.keeper_error = keeper, None
        keeper.children = reading
        await keeper.create(queue.finished("query-0000000001", HOSTS[0]), b"0\n")
        third = record_health(where, await check_health(where))
        return first, second, third

    first, second, third = looked(tmp_path, look=look)
    assert {record.finding.kind for record in first.new} == {K.STUCK_DDL, K.LOST_REPLICA}
    assert second.resolved == ()
    assert K.STUCK_DDL in {record.finding.kind for record in third.resolved}
    assert K.LOST_REPLICA in {record.finding.kind for record in third.continuing}


def test_a_table_that_its_host_has_detached_is_not_lost(tmp_path):
    def change(nodes):
        nodes[1].tables["replicas"] = []
        nodes[1].tables["detached_tables"] = [{"database": "d", "table": "t"}]

    async def prepare(where):
        await where.keeper.remove(f"{PATH}/replicas/n2/is_active")

    (finding,) = looked(tmp_path, change, prepare=prepare).findings
    assert (finding.kind, finding.severity) == (K.TOO_FEW_REPLICAS, Severity.WARNING)
    assert "inactive: n2 (detached on n2:9000)" in finding.what


def test_keeper_is_slow_when_only_its_writes_are(tmp_path):
    """The disk of its log is; reads come from memory."""

    async def slow_writes(where):
        for name in ("create", "remove"):
            write = getattr(where.keeper, name)

            async def slow(*args, write=write, **more):
                await where.env.sleep(0.3)
                return await write(*args, **more)

            setattr(where.keeper, name, slow)

    (finding,) = looked(tmp_path, prepare=slow_writes).findings
    assert finding.kind is K.KEEPER_SLOW and finding.evidence["latency_ms"] >= 300


# --- four-letter words --------------------------------------------------------------------------------------

MNTR = "zk_version\t3.9\nzk_server_state\tleader\nzk_avg_latency\t0.5\nzk_znode_count\t309\nzk_x\tjunk\n"
SRVR = (
    "Zookeeper version: 3.9\nLatency min/avg/max: 0/1.5/19\nReceived: 5\nOutstanding: 2\nZxid: 0x1\n"
    "Mode: standalone\nNode count: 42\n"
)


def test_answers_of_keeper_servers_are_read():
    assert parse_mntr(MNTR) == ("leader", {"latency_avg_ms": 0.5, "znodes": 309.0})
    assert parse_srvr(SRVR) == (
        "standalone",
        {"znodes": 42.0, "outstanding": 2.0, "latency_avg_ms": 1.5, "latency_max_ms": 19.0},
    )
    assert parse_mntr("mntr is not executed because it is not in the whitelist.\n") == ("", {})
    assert parse_srvr("Latency min/avg/max: a/b\nNode count: many") == ("", {})


async def test_a_keeper_server_may_be_silent_or_forbid_words():
    async def ask(host, port, word):
        return {"z1": MNTR if word == "mntr" else SRVR, "z2": "not in the whitelist"}.get(host, "")

    config = ZooKeeper(hosts=(("z1", 2181), ("z2", 2181), ("z3", 2181)))
    servers, gaps = await ask_keeper_servers(config, ask=ask)
    assert [(s.address, s.is_answering, s.mode) for s in servers] == [
        ("z1:2181", True, "leader"),
        ("z2:2181", True, ""),
        ("z3:2181", False, ""),
    ]
    assert [gap.what for gap in gaps] == ["figures of the Keeper server z2:2181"]
    assert (await ask_keeper_servers(ZooKeeper(hosts=(("z", 1),), secure=True)))[0] == ()


def test_severities_are_those_of_the_worst(tmp_path):
    assert looked(tmp_path).worst is None
    assert looked(tmp_path, lambda nodes: nodes[0].replica(queue_size=99)).worst is Severity.WARNING


def test_hosts_that_know_another_cluster_or_none_are_named_with_the_difference(tmp_path):
    def change(nodes):
        nodes[1].tables["clusters"] = shards_known(HOSTS[:3])
        nodes[2].tables["clusters"] = []
        nodes[3].columns.pop("clusters")

    other, none = looked(tmp_path, change).findings
    assert (other.kind, other.host) == (K.CONFIG_DIFFERS, "n2:9000")
    assert "shard 2 is n3:9000 there and n3:9000 + n4:9000 here" in other.what
    assert "shard 1" not in other.what
    assert (none.kind, none.host) == (K.CONFIG_DIFFERS, "n3:9000")
    assert "does not know the cluster" in none.what


def test_a_host_that_takes_itself_for_another_one_is_named(tmp_path):
    def change(nodes):
        for number, node in enumerate(nodes):
            rows = node.tables["clusters"]
            # n2 was given the name of n1; n3 is known by an address that it has not; n4 does not say.
            local = {0: 0, 1: 0, 2: 9}.get(number)
            node.tables["clusters"] = [row | {"is_local": int(at == local)} for at, row in enumerate(rows)]
        nodes[3].columns["clusters"] = nodes[3].columns["clusters"].removesuffix(" is_local")

    (found,) = looked(tmp_path, change).findings
    assert (found.kind, found.host, found.severity) == (K.CONFIG_DIFFERS, "n2:9000", Severity.CRITICAL)
    assert "at n2:9000 takes itself for n1:9000" in found.what


def test_hosts_with_the_same_macros_are_one_replica_to_themselves(tmp_path):
    def macros(**texts):
        return [{"macro": name, "substitution": text} for name, text in texts.items()]

    def change(nodes):
        nodes[0].tables["macros"] = macros(shard="1", replica="a")
        nodes[1].tables["macros"] = macros(shard="1", replica="a")
        nodes[2].tables["macros"] = macros(shard="2", replica="a")
        nodes[3].tables["macros"] = macros(cluster="c")

    (found,) = looked(tmp_path, change).findings
    assert (found.kind, found.host) == (K.CONFIG_DIFFERS, "")
    assert "n1:9000, n2:9000 have the same macros (replica=a, shard=1)" in found.what
