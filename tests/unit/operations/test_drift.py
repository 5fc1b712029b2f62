"""Schema drift: what counts as a difference, what explains it, and what is done about it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from engine.config.model import Cluster, Replica, Shard, Topology
from engine.errors import KeeperUnavailable
from engine.operations.act import ActState, Danger
from engine.operations.carrying_out import carry_out
from engine.operations.drift import (
    DriftKind,
    check_drift,
    drift_performer,
    plan_drift_repair,
    record_drift,
)
from engine.operations.drift.compare import part_differences
from engine.operations.drift.normalise import normalise
from engine.operations.finding import FindingKind, Severity
from engine.replication.columns import Column, Columns
from tests.unit.migrations.ledger_support import write_ledger
from tests.unit.operations.support import HOSTS, simulated, site
from tests.unit.schema_support import FakeServer

PLAIN = (
    "CREATE TABLE d.t (`a` Int32, `b` String) ENGINE = MergeTree ORDER BY a SETTINGS index_granularity = 8192"
)
REPLICATED = (
    "CREATE TABLE d.r (`a` Int32) ENGINE = ReplicatedMergeTree('/clickhouse/tables/{shard}/r', '{replica}') "
    "ORDER BY a SETTINGS index_granularity = 8192"
)


# --- normalising ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (PLAIN, "CREATE TABLE d.t ( a Int32,  b String) ENGINE = MergeTree() ORDER BY (a)"),
        (PLAIN, PLAIN.replace("d.t ", "d.t UUID '37103045-e2e0-4125-a4b0-e255f5e26bce' ")),
        (PLAIN, PLAIN.replace("CREATE", "ATTACH").replace("d.t", "`d`.`t`")),
        (PLAIN + ", ttl_only_drop_parts = 1, x = 2", PLAIN + ", x = 2, ttl_only_drop_parts = 1"),
        (REPLICATED, REPLICATED.replace("{shard}", "02").replace("{replica}", "n3")),
        (REPLICATED, REPLICATED.replace("('/clickhouse/tables/{shard}/r', '{replica}')", "")),
        (
            "CREATE VIEW d.v (`a` Int32) AS SELECT a FROM d.t WHERE b = 'x''y'",
            "CREATE VIEW d.v\n(\n    `a` Int32\n)\nAS SELECT a\nFROM d.t -- why\nWHERE `b` = 'x\\'y'",
        ),
        (
            PLAIN.replace("Int32", "Int32 DEFAULT f(1, 2) COMMENT 'c'"),
            PLAIN.replace("Int32", "Int32 DEFAULT CAST(f(1, 2), 'Int32') COMMENT 'c'"),
        ),
        ("CREATE FUNCTION f AS x -> (x + 1)", "CREATE FUNCTION `f` AS x -> (x+1)"),
    ],
)
def test_one_definition_written_in_two_ways_is_one(one, other):
    assert part_differences(normalise(one), normalise(other)) == ()


@pytest.mark.parametrize(
    ("other", "parts"),
    [
        (PLAIN.replace("Int32", "Int64"), ["column a"]),
        (PLAIN.replace(", `b` String", ""), ["column b"]),
        (PLAIN.replace("`a` Int32, `b` String", "`b` String, `a` Int32"), ["order of columns"]),
        (PLAIN.replace("`b` String", "`b` String COMMENT 'x'"), ["column b"]),
        (PLAIN.replace("String)", "String, INDEX i b TYPE minmax GRANULARITY 1)"), ["index i"]),
        (PLAIN.replace("ORDER BY a", "ORDER BY (a, b)"), ["order by"]),
        (PLAIN.replace("ORDER BY a", "PARTITION BY a % 2 ORDER BY a"), ["partition by"]),
        (PLAIN.replace("ORDER BY a", "ORDER BY a TTL toDate(a) + toIntervalDay(1)"), ["ttl"]),
        (PLAIN.replace("8192", "1024"), ["setting index_granularity"]),
        (PLAIN + " COMMENT 'about it'", ["comment"]),
        (PLAIN.replace("MergeTree", "ReplacingMergeTree(a)"), ["engine"]),
    ],
)
def test_each_part_that_differs_is_named(other, parts):
    found = part_differences(normalise(PLAIN), normalise(other))
    assert [part.part for part in found] == parts


def test_a_dictionary_and_a_materialized_view_are_read_in_parts():
    dictionary = normalise(
        "CREATE DICTIONARY d.dd (`a` UInt64, `b` String) PRIMARY KEY a SOURCE(CLICKHOUSE(TABLE 't' DB 'd')) "
        "LIFETIME(MIN 0 MAX 10) LAYOUT(FLAT())",
        engine="Dictionary",
    )
    assert dictionary.kind == "dictionary" and dictionary.parts["layout"] == "( FLAT ( ) )"
    view = normalise("CREATE MATERIALIZED VIEW d.mv TO d.t (`a` Int32) AS SELECT a FROM d.s")
    assert view.kind == "materialized view" and view.parts["to"] == "d . t"
    assert view.parts["query"] == "SELECT a FROM d . s" and view.columns == ("a",)


def test_text_that_is_no_definition_is_compared_as_it_is():
    assert normalise("what is this").parts["kind"] == "unknown"
    one, other = normalise("what 'is this"), normalise("what 'is that")
    assert one.parts == {"text": "what [HIDDEN]"} and part_differences(one, other)


def test_secrets_that_old_servers_show_are_compared_and_never_told():
    far = "CREATE TABLE d.m (`a` Int32) ENGINE = MySQL('h:3306', 'd', 't', 'u', '{}')"
    one, same, other = (normalise(far.format(word)) for word in ("pass-one", "pass-one", "pass-two"))
    assert part_differences(one, same) == () and one.digest == same.digest != other.digest
    [part] = part_differences(one, other)
    assert str(part).startswith("engine: another secret in") and one.has_secret
    assert "pass-" not in repr(one) + str(part) + one.sql + str(one.fragments) + str(one.hidden)


# --- comparing --------------------------------------------------------------------------------------------


def servers(**changes):
    """Four hosts of two shards that agree; `n3={...}` changes the fields of one."""
    made = {}
    for number, host in enumerate(HOSTS, start=1):
        shard = (number + 1) // 2
        fields = {
            "tables": {"d.t": ("MergeTree", PLAIN), "d.r": ("ReplicatedMergeTree", REPLICATED)},
            "replicas": {"d.r": (f"/clickhouse/tables/{shard}/r", f"n{number}")},
            "macros": {"shard": str(shard), "replica": f"n{number}"},
        }
        made[host] = FakeServer(**(fields | changes.get(host.host, {})))
    return made


async def plant(keeper, *, columns=("a",), own=None):
    """The replicated table of both shards in Keeper."""
    text = Columns(tuple(Column(name, "Int32") for name in columns)).to_bytes()
    for shard, replicas in ((1, ("n1", "n2")), (2, ("n3", "n4"))):
        path = ""
        for name in ("clickhouse", "tables", str(shard), "r"):
            path += f"/{name}"
            if await keeper.exists(path) is None:
                await keeper.create(path)
        await keeper.create(f"{path}/columns", text)
        await keeper.create(f"{path}/metadata", b"metadata")
        await keeper.create(f"{path}/replicas")
        for replica in replicas:
            await keeper.create(f"{path}/replicas/{replica}")
            await keeper.create(f"{path}/replicas/{replica}/columns", (own or {}).get(replica, text))
            await keeper.create(f"{path}/replicas/{replica}/metadata", b"metadata")


def checked(tmp_path, clients, *, then=None, ledger="", planted=True):
    async def main(env, server):
        keeper = await server.connect()
        if planted:
            await plant(keeper)
        here = site(tmp_path, env, keeper, clients=clients)
        here.ledger_url = str(ledger)
        report = await check_drift(here)
        return report if then is None else await then(here, report)

    return simulated(main)


def test_equal_hosts_have_no_drift(tmp_path):
    report = checked(tmp_path, servers())
    assert report.is_equal and report.findings == () and report.objects == 3


def test_a_host_that_lacks_a_table_is_named_and_one_that_has_more(tmp_path):
    without = {"d.r": ("ReplicatedMergeTree", REPLICATED)}
    more = {"d.t": ("MergeTree", PLAIN), "d.x": ("MergeTree", PLAIN.replace("d.t", "d.x"))} | without
    report = checked(tmp_path, servers(n2={"tables": without}, n3={"tables": more}))
    found = [(drift.kind, drift.host.host, str(drift.object)) for drift in report.drifts]
    assert found == [(DriftKind.MISSING, "n2", "d.t"), (DriftKind.EXTRA, "n3", "d.x")]
    assert [finding.severity for finding in report.findings] == [Severity.WARNING, Severity.INFO]
    assert "n2:9000 lacks d.t, which 3 of 4 hosts have" in report.findings[0].what


def test_the_majority_says_what_is_wanted(tmp_path):
    changed = {"d.t": ("MergeTree", PLAIN.replace("String", "String COMMENT 'x'"))}
    tables = {"d.r": ("ReplicatedMergeTree", REPLICATED)} | changed
    report = checked(tmp_path, servers(n1={"tables": tables}))
    [drift] = report.drifts
    assert drift.host.host == "n1" and drift.agree == 3
    assert str(drift.parts[0]) == "column b: wanted `String`, found `String COMMENT 'x'`"


def test_keeper_is_compared_as_it_is_and_not_as_a_server_that_lags_has_it(tmp_path):
    async def main(env, server):
        keeper, behind = await server.connect(), await server.connect()
        await plant(keeper, columns=("old",))
        server.stale_reads(behind.session_id)
        new = Columns((Column("a", "Int32"),)).to_bytes()
        for shard, replicas in ((1, ("n1", "n2")), (2, ("n3", "n4"))):
            table = f"/clickhouse/tables/{shard}/r"
            for place in (table, *(f"{table}/replicas/{name}" for name in replicas)):
                await keeper.set(f"{place}/columns", new)
        return await check_drift(site(tmp_path, env, behind, clients=servers()))

    assert simulated(main).drifts == ()


def test_keeper_is_compared_with_its_replicas_and_with_their_tables(tmp_path):
    async def main(env, server):
        keeper = await server.connect()
        old = Columns((Column("a", "Int32"),)).to_bytes()
        await plant(keeper, columns=("a", "new"), own={"n1": old})
        after = {
            "d.t": ("MergeTree", PLAIN),
            "d.r": ("ReplicatedMergeTree", REPLICATED.replace("Int32)", "Int32, `new` Int32)")),
        }
        clients = servers(n3={"tables": after}, n4={"tables": after})
        return await check_drift(site(tmp_path, env, keeper, clients=clients))

    report = simulated(main)
    found = {(drift.host.host, drift.kind) for drift in report.drifts}
    # Two have it and two do not: Keeper says who is right. n1 knows that it is behind; n2 does not.
    assert found == {
        ("n1", DriftKind.DIFFERS),
        ("n1", DriftKind.BEHIND),
        ("n2", DriftKind.DIFFERS),
        ("n2", DriftKind.KEEPER),
    }


def test_replicas_of_one_shard_with_two_paths_are_no_replicas(tmp_path):
    report = checked(tmp_path, servers(n2={"replicas": {"d.r": ("/elsewhere/r", "n2")}}))
    assert [(d.kind, d.host.host) for d in report.drifts] == [(DriftKind.PATH, "n2")]


def test_hosts_that_do_not_answer_or_lack_system_tables_are_said_and_not_compared(tmp_path):
    old = {
        "server_version": (18, 16, 1),
        "missing": frozenset({("functions", "create_query"), ("functions", "origin"), ("replicas", "table")}),
        "replicas": {},
    }
    clients = servers(n1={"is_down": True}, n2=old)
    for host, server in clients.items():
        if host.host != "n2":
            server.functions["f"] = "CREATE FUNCTION f AS x -> (x + 1)"
    report = checked(tmp_path, clients)
    assert report.drifts == () and not report.is_equal
    assert [finding.kind for finding in report.findings] == [FindingKind.NOT_CHECKED]
    assert any("n2:9000: system.replicas has no table" in note for note in report.notes)


@pytest.mark.parametrize(("silent", "is_planned"), [(("n4",), True), (("n3", "n4"), False)])
@pytest.mark.parametrize("is_missing", [True, False])
def test_nothing_is_repaired_where_hosts_that_do_not_answer_could_turn_the_majority_round(
    tmp_path, silent, is_planned, is_missing
):
    """n1 and, where it answers, n3 have the table as it was made; n2 lacks it, or has another one."""
    tables = {"d.r": ("ReplicatedMergeTree", REPLICATED)}
    if not is_missing:
        tables["d.t"] = ("MergeTree", PLAIN.replace(", `b` String", ""))

    async def plan(here, report):
        return report, plan_drift_repair(here, report)

    down = {name: {"is_down": True} for name in silent}
    report, made = checked(tmp_path, servers(n2={"tables": tables}, **down), then=plan)
    assert {drift.host.host for drift in report.drifts} == {"n2"}
    assert bool(made.acts) is is_planned
    assert any(note.startswith("Left alone until more hosts answer") for note in made.notes) is not is_planned
    assert ("2 more did not answer" in report.findings[0].what) is not is_planned


def test_what_others_rest_on_is_made_first(tmp_path):
    tables = {
        "d.a": ("View", "CREATE VIEW d.a (`a` Int32) AS SELECT a FROM d.b"),
        "d.b": ("Distributed", "CREATE TABLE d.b (`a` Int32) ENGINE = Distributed('c', 'd', 'z')"),
        "d.c": (
            "Dictionary",
            "CREATE DICTIONARY d.c (`a` UInt64) PRIMARY KEY a SOURCE(CLICKHOUSE(TABLE 'z')) LAYOUT(FLAT())",
        ),
        "d.m": ("MaterializedView", "CREATE MATERIALIZED VIEW d.m TO d.z (`a` Int32) AS SELECT a FROM d.a"),
        "d.z": ("MergeTree", PLAIN.replace("d.t", "d.z")),
    }

    async def plan(here, report):
        return report, plan_drift_repair(here, report)

    having = {name: {"tables": tables} for name in ("n1", "n2", "n3")}
    clients = servers(**having, n4={"tables": {}})
    for host, server in clients.items():
        if host.host != "n4":
            server.functions["f"] = "CREATE FUNCTION f AS x -> (x + 1)"
    _, made = checked(tmp_path, clients, then=plan)
    assert [act.subject for act in made.acts] == ["function f", "d.z", "d.c", "d.b", "d.a", "d.m"]
    assert {act.host for act in made.acts} == {"n4:9000"}


def test_keeper_down_leaves_hosts_compared(tmp_path):
    async def main(env, _server):
        return await check_drift(site(tmp_path, env, None, clients=servers(n4={"tables": {}})))

    report = simulated(main)
    assert {drift.host.host for drift in report.drifts} == {"n4"}
    assert any("Keeper was not looked at" in note for note in report.notes)


# --- records ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("silent", "is_resolved"),
    [
        ((), True),
        (("n3",), True),
        (("n2",), False),
        (("n1", "n3", "n4"), False),
    ],
)
def test_a_drift_that_nobody_could_look_for_is_not_resolved(tmp_path, silent, is_resolved):
    """1. n2 has another table. 2. It is repaired. Nobody can say so where n2 does not answer, or nobody
    else."""

    async def look_again(here, report):
        first = record_drift(here, report)
        for host in HOSTS:
            here.clients[host].is_down = host.host in silent
            here.clients[host].tables = servers()[host].tables
        return first, record_drift(here, await check_drift(here))

    other = {
        "d.t": ("MergeTree", PLAIN.replace("Int32", "Int64")),
        "d.r": ("ReplicatedMergeTree", REPLICATED),
    }
    first, second = checked(tmp_path, servers(n2={"tables": other}), then=look_again)
    assert [record.finding.kind for record in first.new] == [FindingKind.SCHEMA_DRIFT]
    assert [record.finding.kind for record in second.resolved] == (
        [FindingKind.SCHEMA_DRIFT] if is_resolved else []
    )


def test_a_drift_from_keeper_is_not_resolved_while_keeper_was_not_looked_at(tmp_path):
    async def look_again(here, report):
        first = record_drift(here, report)
        keeper = here.keeper_or_none
        here.keeper_or_none, here.keeper_error = None, KeeperUnavailable("No server answers.")
        second = record_drift(here, await check_drift(here))
        here.keeper_or_none = keeper
        here.clients[HOSTS[1]].tables = servers()[HOSTS[1]].tables
        return first, second, record_drift(here, await check_drift(here))

    other = {
        "d.t": ("MergeTree", PLAIN),
        "d.r": ("ReplicatedMergeTree", REPLICATED.replace("Int32", "Int64")),
    }
    first, second, third = checked(tmp_path, servers(n2={"tables": other}), then=look_again)
    assert DriftKind.KEEPER in {record.finding.evidence["kind"] for record in first.new}
    assert second.resolved == ()
    assert DriftKind.KEEPER in {record.finding.evidence["kind"] for record in third.resolved}


# --- explaining -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("state", "words", "severity"),
    [
        ("expired", "expired (query-0000000007) before n2:9000 came back", Severity.WARNING),
        ("failed", "failed on n2:9000 (query-0000000007): no space", Severity.WARNING),
        ("inactive", "is inactive on n2:9000 (query-0000000007); it does it by itself", Severity.INFO),
        ("done", "changed since then, outside of migrations", Severity.WARNING),
        (None, "was applied when n2:9000 was not among its hosts", Severity.WARNING),
    ],
)
def test_the_ledger_says_which_migration_explains_it(tmp_path, state, words, severity):
    before = {
        "d.t": ("MergeTree", PLAIN.replace(", `b` String", "")),
        "d.r": ("ReplicatedMergeTree", REPLICATED),
    }

    async def main(env, server):
        keeper = await server.connect()
        await plant(keeper)
        states = {host: "done" for host in HOSTS if host.host != "n2"}
        if state is not None:
            states[HOSTS[1]] = state
        write_ledger(tmp_path / "ledger.db", env, states)
        here = site(tmp_path, env, keeper, clients=servers(n2={"tables": before}))
        here.ledger_url = str(tmp_path / "ledger.db")
        report = await check_drift(here)
        seen = record_drift(here, report)
        return report, seen, plan_drift_repair(here, report)

    report, seen, plan = simulated(main)
    [finding] = report.findings
    assert words in finding.what and "5_add" in finding.what, finding.what
    assert finding.severity is severity and len(seen.new) == 1
    assert bool(plan.acts) is (severity is Severity.WARNING)  # what comes by itself is left alone


@pytest.mark.parametrize("inside", [1, 3], ids=["extra on one", "missing on one"])
@pytest.mark.parametrize("is_own", [False, True], ids=["of the other cluster", "of this one, too"])
def test_what_the_migrations_of_an_overlapping_cluster_make_is_no_drift_outside_of_it(
    tmp_path, inside, is_own
):
    without = {"tables": {"d.r": ("ReplicatedMergeTree", REPLICATED)}}
    lacking = {host.host: without for host in HOSTS[inside:]}

    async def main(env, server):
        keeper = await server.connect()
        await plant(keeper)
        here = site(tmp_path, env, keeper, clients=servers(**lacking))
        here.ledger_url = str(tmp_path / "ledger.db")
        replicas = tuple(Replica(host.host, host.port) for host in HOSTS[:inside])
        other = Cluster("other", (Shard(1, replicas),))
        clusters = {**here.config.topology.clusters, "other": other}
        here.config = replace(here.config, topology=Topology(clusters, {}))
        write_ledger(tmp_path / "ledger.db", env, dict.fromkeys(HOSTS[:inside], "done"), cluster="other")
        if is_own:
            write_ledger(tmp_path / "ledger.db", env, dict.fromkeys(HOSTS, "done"))
        report = await check_drift(here)
        return report, plan_drift_repair(here, report)

    report, plan = simulated(main)
    assert [str(drift.object) for drift in report.drifts] == (["d.t"] if is_own else [])
    assert bool(plan.acts) is (is_own and inside == 3)


def test_the_migration_of_another_cluster_of_the_host_explains_it_where_this_clusters_say_nothing(tmp_path):
    without = {"tables": {"d.r": ("ReplicatedMergeTree", REPLICATED)}}

    async def main(env, server):
        keeper = await server.connect()
        await plant(keeper)
        here = site(tmp_path, env, keeper, clients=servers(n1=without))
        here.ledger_url = str(tmp_path / "ledger.db")
        other = Cluster("other", (Shard(1, (Replica("n1", 9000), Replica("n2", 9000))),))
        clusters = {**here.config.topology.clusters, "other": other}
        here.config = replace(here.config, topology=Topology(clusters, {}))
        states = {HOSTS[0]: "inactive", HOSTS[1]: "done"}
        write_ledger(tmp_path / "ledger.db", env, states, cluster="other")
        report = await check_drift(here)
        return report, plan_drift_repair(here, report)

    report, plan = simulated(main)
    [drift] = report.drifts
    assert (str(drift.object), drift.host.host) == ("d.t", "n1")
    assert "5_add_b of other, statement 1, is inactive on n1:9000" in drift.explanation.what
    assert plan.acts == ()


@pytest.mark.parametrize("state", ["running", "inactive", "failed", "expired"])
def test_a_host_that_has_done_what_most_have_not_is_left_alone(tmp_path, state):
    """A migration is under way, or stands where it failed: to make all hosts alike would undo it."""
    before = {
        "d.t": ("MergeTree", PLAIN.replace(", `b` String", "")),
        "d.r": ("ReplicatedMergeTree", REPLICATED),
    }

    async def main(env, server):
        keeper = await server.connect()
        await plant(keeper)
        states = {host: "done" if host.host == "n1" else state for host in HOSTS}
        write_ledger(tmp_path / "ledger.db", env, states)
        lacking = {host.host: {"tables": before} for host in HOSTS if host.host != "n1"}
        here = site(tmp_path, env, keeper, clients=servers(**lacking))
        here.ledger_url = str(tmp_path / "ledger.db")
        report = await check_drift(here)
        return report, plan_drift_repair(here, report)

    report, plan = simulated(main)
    assert {drift.host.host for drift in report.drifts} == {"n1"}
    assert plan.acts == ()
    assert any("is done on n1:9000, and" in note and "those are behind" in note for note in plan.notes)


# --- repairing --------------------------------------------------------------------------------------------


def repaired(tmp_path, clients, *, meddle=None, planted=True):
    async def then(here, report):
        plan = plan_drift_repair(here, report)
        if meddle:
            meddle()
        done = await carry_out(here, plan, drift_performer(here), run_id="r", approved_by="ada")
        return plan, done, await check_drift(here)

    return checked(tmp_path, clients, then=then, planted=planted)


def states(report):
    return [result.state for _, result in report.results]


def test_what_is_missing_is_made_only_where_it_is_missing_databases_first(tmp_path):
    clients = servers(
        n4={"tables": {}, "databases": {}, "replicas": {}, "macros": {"shard": "2", "replica": "n9"}}
    )
    plan, done, after = repaired(tmp_path, clients)
    assert states(done) == [ActState.DONE] * 3 and after.is_equal
    ran = clients[HOSTS[3]].ran
    assert ran[0] == "CREATE DATABASE IF NOT EXISTS `d`"
    assert ran[1].startswith("CREATE TABLE IF NOT EXISTS d.r (") and "'{replica}'" in ran[1]
    assert all(not server.ran for host, server in clients.items() if host.host != "n4")
    assert all(act.danger is Danger.REPAIRS for act in plan.acts)


def test_a_missing_column_is_added_in_its_place_and_an_old_server_is_asked_in_its_words(tmp_path):
    before = PLAIN.replace("`a` Int32, ", "")
    for version, words in (((26, 9), "ADD COLUMN IF NOT EXISTS `a`"), ((18, 16), "ADD COLUMN `a`")):
        tables = {"d.t": ("MergeTree", before), "d.r": ("ReplicatedMergeTree", REPLICATED)}
        clients = servers(
            n1={
                "tables": tables,
                "server_version": version,
                "effects": {"ALTER": ("d.t", "MergeTree", PLAIN)},
            }
        )
        (tmp_path / str(version[0])).mkdir()
        _, done, after = repaired(tmp_path / str(version[0]), clients)
        assert clients[HOSTS[0]].ran == [f"ALTER TABLE `d`.`t` {words} Int32 FIRST"]
        assert states(done) == [ActState.DONE] and after.is_equal


@pytest.mark.parametrize(
    ("there", "sql"),
    [
        (PLAIN.replace("`b` String", "`b` String DEFAULT 'x'"), None),
        (PLAIN.replace("`a` Int32", "`a` Int64"), None),
        (PLAIN.replace("ORDER BY a", "ORDER BY a TTL toDate(a) + toIntervalDay(1)"), None),
        (PLAIN.replace("`b` String", "`b` String, `c` String"), None),
        (PLAIN.replace("MergeTree", "ReplacingMergeTree"), None),
        (PLAIN + ", ttl_only_drop_parts = 1", "ALTER TABLE `d`.`t` RESET SETTING ttl_only_drop_parts"),
    ],
)
def test_what_could_cost_data_is_advice(tmp_path, there, sql):
    tables = {"d.t": ("MergeTree", there), "d.r": ("ReplicatedMergeTree", REPLICATED)}

    async def then(here, report):
        return plan_drift_repair(here, report)

    plan = checked(tmp_path, servers(n2={"tables": tables}), then=then)
    assert [act.payload["sql"] for act in plan.acts] == ([sql] if sql else [])
    assert any("By hand" in note for note in plan.notes) is (sql is None)
    assert not any("DROP" in act.payload["sql"] for act in plan.acts)


def test_a_default_that_is_missing_is_set(tmp_path):
    wanted = PLAIN.replace("`b` String", "`b` String DEFAULT 'x' COMMENT 'y'")
    all_wanted = {"d.t": ("MergeTree", wanted), "d.r": ("ReplicatedMergeTree", REPLICATED)}
    clients = servers(
        **{name: {"tables": dict(all_wanted)} for name in ("n1", "n3", "n4")},
        n2={
            "tables": {"d.t": ("MergeTree", PLAIN), "d.r": ("ReplicatedMergeTree", REPLICATED)},
            "effects": {"ALTER": ("d.t", "MergeTree", wanted)},
        },
    )
    _, done, after = repaired(tmp_path, clients)
    assert clients[HOSTS[1]].ran == ["ALTER TABLE `d`.`t` MODIFY COLUMN `b` String DEFAULT 'x' COMMENT 'y'"]
    assert states(done) == [ActState.DONE] and after.is_equal


def test_what_changed_since_the_plan_is_refused_or_not_needed(tmp_path):
    only_r = {"d.r": ("ReplicatedMergeTree", REPLICATED)}
    clients = servers(n2={"tables": dict(only_r)})
    n2 = clients[HOSTS[1]]

    def somebody_made_it():
        n2.tables["d.t"] = ("MergeTree", PLAIN)

    _, done, _ = repaired(tmp_path, clients, meddle=somebody_made_it)
    assert states(done) == [ActState.NOT_NEEDED] and not n2.ran
    (tmp_path / "2").mkdir()
    clients = servers(n2={"tables": dict(only_r)})

    def the_others_moved_on():
        for host, server in clients.items():
            if host.host != "n2":
                server.tables["d.t"] = ("MergeTree", PLAIN.replace("String", "UInt8"))

    _, done, _ = repaired(tmp_path / "2", clients, meddle=the_others_moved_on)
    assert states(done) == [ActState.REFUSED] and not clients[HOSTS[1]].ran
    (tmp_path / "3").mkdir()
    clients = servers(n2={"tables": dict(only_r)})

    def another_was_made():
        clients[HOSTS[1]].tables["d.t"] = ("Log", "CREATE TABLE d.t (`a` Int32) ENGINE = Log")

    _, done, _ = repaired(tmp_path / "3", clients, meddle=another_was_made)
    assert states(done) == [ActState.REFUSED] and not clients[HOSTS[1]].ran


@pytest.mark.parametrize(
    ("in_keeper", "advice"),
    [
        (("a",), "its shard has not had that ALTER. Once there: ALTER TABLE `d`.`r` ADD COLUMN"),
        (("a", "new"), "its replica has yet to take over an ALTER"),
    ],
)
def test_an_alter_that_a_replica_lacks_is_its_own_affair_or_its_shards(tmp_path, in_keeper, advice):
    async def main(env, server):
        keeper = await server.connect()
        await plant(keeper, columns=("a", "new"))
        text = Columns(tuple(Column(name, "Int32") for name in in_keeper)).to_bytes()
        await keeper.set("/clickhouse/tables/2/r/columns", text)
        altered = {
            "d.t": ("MergeTree", PLAIN),
            "d.r": ("ReplicatedMergeTree", REPLICATED.replace("Int32)", "Int32, `new` Int32)")),
        }
        clients = servers(n1={"tables": altered}, n2={"tables": altered}, n4={"is_down": True})
        here = site(tmp_path, env, keeper, clients=clients)
        return plan_drift_repair(here, await check_drift(here))

    plan = simulated(main)
    assert plan.acts == () and any(advice in note for note in plan.notes), plan.notes


def test_a_replica_that_keeper_still_knows_is_no_drift_to_repair_here(tmp_path):
    clients = servers(n4={"tables": {"d.t": ("MergeTree", PLAIN)}, "replicas": {}})

    async def main(env, server):
        keeper = await server.connect()
        await plant(keeper)
        clients[HOSTS[2]].replicas["d.r"] = ("/clickhouse/tables/2/r", "n3")
        here = site(tmp_path, env, keeper, clients=clients)
        return plan_drift_repair(here, await check_drift(here))

    plan = simulated(main)
    assert plan.acts == () and any("had a replica n4 here before" in note for note in plan.notes), plan.notes


@pytest.mark.parametrize("lacking", [{}, {"d.t": ("MergeTree", PLAIN.replace(", `b` String", ""))}])
def test_what_is_of_a_replicated_database_is_left_to_it(tmp_path, lacking):
    replicated = {"databases": {"d": "Replicated"}}

    async def then(here, report):
        return report, plan_drift_repair(here, report)

    clients = servers(**dict.fromkeys(("n1", "n2", "n3"), replicated), n4=replicated | {"tables": lacking})
    report, plan = checked(tmp_path, clients, then=then)
    assert "d.t" in {str(drift.object) for drift in report.drifts}
    assert plan.acts == () and any("SYSTEM SYNC DATABASE REPLICA `d`" in note for note in plan.notes)


@pytest.mark.parametrize("password", ["[HIDDEN]", "pass-one"])
def test_what_has_a_secret_is_left_to_a_person(tmp_path, password):
    secret = f"CREATE DICTIONARY d.dd (`a` UInt64) PRIMARY KEY a SOURCE(CLICKHOUSE(PASSWORD '{password}'))"
    clients = servers()
    for host, server in clients.items():
        if host.host != "n2":
            server.tables["d.dd"] = ("Dictionary", secret)

    async def then(here, report):
        return plan_drift_repair(here, report)

    plan = checked(tmp_path, clients, then=then)
    assert plan.acts == () and any("has a secret" in note for note in plan.notes)
    assert "pass-one" not in str(plan.to_json())
