"""Repair: which repair fits a finding, in which order, and within which bounds."""

from __future__ import annotations

from dataclasses import replace

import pytest

from engine.config.health_model import HealthSettings
from engine.errors import SqlError
from engine.names import TableName
from engine.operations.act import Danger, Plan
from engine.operations.health import report_of
from engine.operations.health.facts import (
    KeeperFacts,
    MutationFacts,
    QueueEntryFacts,
    Silence,
    Unreadable,
)
from engine.operations.repair import Peers, Repair, plan_repair
from engine.operations.repair.create_sql import create_for
from engine.operations.repair.shard import state_of
from tests.unit.operations.health_support import (
    NOW_S,
    PATH,
    TABLE,
    FakeNode,
    cluster,
    host,
    register,
    registered,
    replica,
    table,
)
from tests.unit.operations.support import HOSTS, simulated, site

PARTS = r"toUInt64\(rows\) FROM system\.parts"
N1, N2 = HOSTS[:2]


def planned(tmp_path, facts, *, parts=None, answers=(), limit=None, only=()) -> Plan:
    """The plan for these facts; `parts` are name → rows on the disk of each of the hosts. What is active in
    Keeper is so for good."""

    async def main(env, server):
        keeper = await server.connect()
        for name in ("n1", "n2"):
            known = facts.keeper.tables.get(PATH)
            is_active = known is None or name not in known.replicas or known.replicas[name].is_active
            await register(keeper, name, is_active=is_active)
            await keeper.create(f"{PATH}/replicas/{name}/parts/all_0_0_0")
        nodes = {}
        for number, each in enumerate(HOSTS):
            rows = list((parts or [{"all_0_0_0": 10}] * 4)[number].items()) if number < 2 else []
            nodes[each] = FakeNode(each.host, answers=[*answers, (PARTS, rows)])
        where = site(tmp_path, env, keeper, clients=nodes)
        return await plan_repair(where, report_of(facts, HealthSettings()), limit=limit, only=only)

    return simulated(main)


def acts(plan):
    return [(act.kind, act.host) for act in plan.acts]


def in_keeper(*replicas, **changes):
    return KeeperFacts(tables={PATH: table(*replicas, **changes)})


def read_only(number=1, **changes):
    return host(number, replicas=(replica(f"n{number}", is_readonly=True, readonly_s=60, **changes),))


def failing(code, **changes):
    entry = QueueEntryFacts(TABLE, "queue-1", "GET_PART", "p", NOW_S - 900, 99, f"Code: {code}. x", "", False)
    return replace(entry, **changes)


def test_a_fingerprint_that_no_finding_has_is_told(tmp_path):
    facts = cluster(read_only(), keeper=in_keeper(registered("n2")))
    [finding] = [found for found in report_of(facts, HealthSettings()).findings if found.host == "n1:9000"]
    plan = planned(tmp_path, facts, only=(finding.fingerprint[:8], "nonsense"))
    assert acts(plan) == [(Repair.RESTORE_REPLICA, "n1:9000")]
    assert plan.notes == ("No finding of this look begins with nonsense: it is over, or misspelt.",)


# --- which repair -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("facts", "kind"),
    [
        (
            cluster(host(replicas=(replica(is_session_expired=True, is_readonly=True),))),
            Repair.RESTART_REPLICAS,
        ),
        (
            cluster(read_only(), keeper=in_keeper(registered("n1", is_active=False), registered("n2"))),
            Repair.RESTART_REPLICA,
        ),
        (
            cluster(
                read_only(),
                keeper=in_keeper(registered("n1", is_active=False, is_lost=True), registered("n2")),
            ),
            Repair.RESTART_REPLICA,
        ),
        (cluster(read_only(), keeper=in_keeper(registered("n2"))), Repair.RESTORE_REPLICA),
        (
            cluster(host(replicas=(replica(),), unreadable=(Unreadable(TABLE, "Code: 40", is_damage=True),))),
            Repair.REFETCH_PARTS,
        ),
        (cluster(host(replicas=(replica(),), queue=(failing(40),))), Repair.REFETCH_PARTS),
        (cluster(host(replicas=(replica(),), queue=(failing(234),))), Repair.RETRY_QUEUE),
        (
            cluster(
                host(
                    replicas=(replica(),),
                    mutations=(MutationFacts(TABLE, "0000000001", "x", NOW_S - 900, fail_reason="boom"),),
                )
            ),
            Repair.KILL_MUTATION,
        ),
    ],
)
def test_each_finding_has_the_repair_that_fits(tmp_path, facts, kind):
    plan = planned(tmp_path, facts)
    assert acts(plan) == [(kind.value, "n1:9000")]
    assert plan.needs_approval
    [act] = plan.acts
    assert act.danger is (Danger.DESTROYS if kind is Repair.KILL_MUTATION else Danger.REPAIRS)
    assert Plan.from_json(plan.to_json()).checksum == plan.checksum


def test_a_replica_whose_parts_keeper_does_not_know_is_made_to_follow_keeper(tmp_path):
    facts = cluster(read_only(), keeper=in_keeper(registered("n1", is_active=False), registered("n2")))
    disk = {"all_0_0_0": 10, "all_7_7_0": 11}
    plan = planned(tmp_path, facts, parts=[disk, {}])
    assert acts(plan) == [("force-restore-data", "n1:9000")]
    assert "11 of its 21 rows" in plan.acts[0].why
    alone = cluster(read_only(), host(2), keeper=in_keeper(registered("n1", is_active=False)))
    plan = planned(tmp_path, alone, parts=[disk, {}])
    assert plan.acts == ()
    assert any("only replica" in note for note in plan.notes)


@pytest.mark.parametrize(
    "facts",
    [
        cluster(host(1, silence=Silence.DOWN, error="x", knows_replicas=False)),
        cluster(keeper=KeeperFacts(error="down")),
        cluster(host(replicas=(replica(queue_size=99),))),
        cluster(read_only(), keeper=in_keeper(registered("n1", active_data="UUID_other"), registered("n2"))),
        cluster(
            read_only(
                readonly_reason="Code: 122. Table d.t is not as Keeper knows it (INCOMPATIBLE_COLUMNS)"
            ),
            keeper=in_keeper(registered("n1", is_active=False), registered("n2")),
        ),
        cluster(
            host(replicas=(replica(is_readonly=True, readonly_s=3),)),
            keeper=in_keeper(registered("n1", is_active=False), registered("n2")),
        ),
    ],
)
def test_for_the_rest_there_is_advice(tmp_path, facts):
    plan = planned(tmp_path, facts)
    assert plan.acts == () and plan.notes


@pytest.mark.parametrize(
    ("changes", "keeper", "says"),
    [
        (
            {"replicas": (replica(is_readonly=True),)},
            in_keeper(registered("n2")),
            "no SYSTEM RESTORE REPLICA",
        ),
        (
            {"mutations": (MutationFacts(TABLE, "0000000001", "x", NOW_S - 900, fail_reason="boom"),)},
            None,
            "no KILL MUTATION",
        ),
        ({"unreadable": (Unreadable(TABLE, "Code: 40", is_damage=True),)}, None, "no CHECK TABLE"),
    ],
)
def test_a_server_that_is_too_old_for_a_repair_gets_advice(tmp_path, changes, keeper, says):
    old = host(**({"version": (18, 16, 1), "replicas": (replica(),)} | changes))
    plan = planned(tmp_path, cluster(old, keeper=keeper))
    assert plan.acts == ()
    assert any(f"version 18.16.1 has {says}" in note for note in plan.notes)


def test_a_lost_replica_is_created_with_a_statement_that_is_in_the_plan(tmp_path):
    facts = cluster(host(2), keeper=in_keeper(registered("n1"), registered("n2", is_active=False)))
    sql = "CREATE TABLE d.t (k Int8) ENGINE = ReplicatedMergeTree('/tables/t', '{replica}') ORDER BY k"
    plan = planned(tmp_path, facts, answers=[("create_table_query", [(sql,)])])
    assert acts(plan) == [("reclone-replica", "n2:9000")]
    assert plan.acts[0].payload["create"] == sql
    assert plan.acts[0].danger is Danger.DESTROYS


# --- bounds -------------------------------------------------------------------------------------------------


def test_a_replica_is_left_alone_while_another_one_of_its_table_is_not_healthy(tmp_path):
    facts = cluster(
        host(1, replicas=(replica(),), queue=(failing(234),)),
        host(2, silence=Silence.DOWN, error="x", knows_replicas=False),
        keeper=in_keeper(registered("n1"), registered("n2", is_active=False)),
    )
    plan = planned(tmp_path, facts)
    assert plan.acts == ()
    assert any("not healthy: n2" in note for note in plan.notes)


@pytest.mark.parametrize(
    ("facts", "kind", "why"),
    [
        (
            cluster(
                host(1, replicas=(replica(),), unreadable=(Unreadable(TABLE, "Code: 40", is_damage=True),)),
                host(2, replicas=(replica("n2", is_readonly=True),)),
            ),
            Repair.REFETCH_PARTS,
            "not healthy: n2 (it is read-only)",
        ),
        (
            cluster(
                host(1, replicas=(replica(is_readonly=True),)),
                host(2),
                keeper=in_keeper(registered("n1", is_active=False), registered("n2", is_active=False)),
            ),
            Repair.RECLONE_REPLICA,
            "not healthy: n1 (it is read-only)",
        ),
        (
            cluster(
                read_only(1),
                host(2, silence=Silence.DOWN, error="x", knows_replicas=False),
                keeper=in_keeper(registered("n2", is_active=False)),
            ),
            Repair.RESTORE_REPLICA,
            "No other replica of its table is active and healthy: n2",
        ),
    ],
)
def test_what_takes_data_from_another_replica_waits_for_one_that_has_it(tmp_path, facts, kind, why):
    plan = planned(tmp_path, facts)
    assert kind not in [act.kind for act in plan.acts]
    assert any(why in note for note in plan.notes), plan.notes


def test_nothing_is_repaired_while_keeper_is_down_whatever_hosts_say(tmp_path):
    lost = host(1, replicas=(replica(is_session_expired=True, is_readonly=True, readonly_s=60),))
    assert acts(planned(tmp_path, cluster(lost))) == [("restart-replicas", "n1:9000")]
    plan = planned(tmp_path, cluster(lost, keeper=KeeperFacts(error="refused")))
    assert plan.acts == ()


def test_of_two_replicas_that_serve_one_is_repaired_in_a_run(tmp_path):
    facts = cluster(*(host(n, replicas=(replica(f"n{n}"),), queue=(failing(234),)) for n in (1, 2)))
    plan = planned(tmp_path, facts)
    assert acts(plan) == [("retry-queue", "n1:9000")]
    assert any("repaired first" in note for note in plan.notes)


def test_where_the_whole_table_is_gone_the_fullest_replica_is_restored_first(tmp_path):
    gone = replace(table(), exists=False, replicas={})
    facts = cluster(read_only(1), read_only(2), keeper=KeeperFacts(tables={PATH: gone}))
    plan = planned(tmp_path, facts, parts=[{"all_0_0_0": 5}, {"all_0_0_0": 5, "all_1_1_0": 1}])
    assert acts(plan) == [("restore-replica", "n2:9000"), ("restore-replica", "n1:9000")]


def test_a_run_does_so_many_repairs_and_says_what_is_left(tmp_path):
    tables = [TableName("d", f"t{n}") for n in range(5)]
    replicas = tuple(
        replica(table=name, path=f"/tables/{name.table}", is_readonly=True, readonly_s=60) for name in tables
    )
    keeper = KeeperFacts(
        tables={
            f"/tables/{name.table}": table(registered("n1", is_active=False), registered("n2"))
            for name in tables
        }
    )
    facts = cluster(host(1, replicas=replicas), host(2), keeper=keeper)
    plan = planned(tmp_path, facts, limit=2, parts=[{}, {}])
    assert len(plan.acts) == 2
    assert sum("a run does 2 repairs at most" in note for note in plan.notes) == 3


def test_only_the_findings_that_are_named_are_repaired(tmp_path):
    keeper = in_keeper(registered("n1"))
    facts = cluster(host(replicas=(replica(),), queue=(failing(234),)), read_only(2), keeper=keeper)
    report = report_of(facts, HealthSettings())
    [wanted] = [f for f in report.findings if f.kind.value == "keeper-metadata-lost"]
    assert acts(planned(tmp_path, facts, only=[wanted.fingerprint[:12]])) == [("restore-replica", "n2:9000")]


def test_what_is_asked_of_the_other_replicas():
    healthy = state_of(cluster(), PATH)
    assert {healthy.objection("n1", peers) for peers in Peers} == {""}
    one_down = state_of(
        cluster(host(2), keeper=in_keeper(registered("n1"), registered("n2", is_active=False))), PATH
    )
    assert one_down.objection("n1", Peers.ANY) == ""
    assert "n2 (its host does not answer" in one_down.objection("n1", Peers.ALL_HEALTHY)
    assert "no other replica" in one_down.objection("n1", Peers.ONE_ACTIVE)
    assert one_down.objection("n2", Peers.ALL_HEALTHY) == ""
    gone = state_of(
        cluster(keeper=KeeperFacts(tables={PATH: replace(table(), exists=False, replicas={})})), PATH
    )
    assert gone.objection("n1", Peers.ONE_ACTIVE) == ""


@pytest.mark.parametrize(
    ("told", "in_keeper_too", "trouble"),
    [
        ({}, {"is_lost": True}, "it is lost"),
        ({"is_session_expired": True}, {}, "its session is lost"),
        ({"is_readonly": True}, {}, "it is read-only"),
        ({}, {"is_active": False}, "it is not active"),
    ],
)
def test_a_replica_that_is_ill_carries_no_other_one(told, in_keeper_too, trouble):
    n2 = replace(registered("n2"), **in_keeper_too)
    facts = cluster(host(2, replicas=(replica("n2", **told),)), keeper=in_keeper(registered("n1"), n2))
    state = state_of(facts, PATH)
    assert f"n2 ({trouble})" in state.objection("n1", Peers.ALL_HEALTHY)
    assert f"n2 ({trouble})" in state.objection("n1", Peers.ONE_ACTIVE)


def test_what_another_table_s_replica_of_that_name_is_doing_says_nothing_of_this_one():
    elsewhere = replica("n2", table=TableName("d", "u"), path="/tables/u")
    state = state_of(cluster(host(2, replicas=(elsewhere,))), PATH)
    assert state.replica("n2").told is None
    assert "n2 (its host does not answer, or does not have it)" in state.objection("n1", Peers.ALL_HEALTHY)


# --- the statement of a lost replica ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("engine", "expected"),
    [
        (
            "ReplicatedMergeTree('/t/{shard}', '{replica}', v)",
            "ReplicatedMergeTree('/t/{shard}', '{replica}', v)",
        ),
        ("ReplicatedMergeTree('/t/01', 'n1')", "ReplicatedMergeTree('/t/01', 'n2')"),
        ("ReplicatedMergeTree('/t/{uuid}', '{replica}')", "ReplicatedMergeTree('/t/01', '{replica}')"),
        ("ReplicatedMergeTree", "ReplicatedMergeTree('/t/01', 'n2')"),
        ("ReplicatedMergeTree()", "ReplicatedMergeTree('/t/01', 'n2')"),
        ("ReplicatedReplacingMergeTree(v)", "ReplicatedReplacingMergeTree('/t/01', 'n2', v)"),
    ],
)
def test_the_statement_names_the_replica_where_it_names_one_at_all(engine, expected):
    sql = "CREATE TABLE d.t (k Int8 COMMENT 'n1') ENGINE = {} ORDER BY k"
    made = create_for(sql.format(engine), path="/t/01", donor="n1", replica="n2")
    assert made == sql.format(expected)


def test_a_table_that_is_not_replicated_has_no_such_statement():
    with pytest.raises(SqlError, match="names no replicated engine"):
        create_for("CREATE TABLE t (k Int8) ENGINE = Log", path="/p", donor="a", replica="b")
