"""Health: what the checks say of facts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from engine.config.health_model import HealthSettings, TableLimits, TableOverride
from engine.names import HostId, TableName
from engine.operations.finding import FindingKind, Severity
from engine.operations.health import report_of
from engine.operations.health.facts import (
    ClockFacts,
    DdlFacts,
    DetachedFacts,
    DiskFacts,
    Gap,
    KeeperFacts,
    KeeperServerFacts,
    MutationFacts,
    NotSaid,
    QueueEntryFacts,
    Silence,
    SpoolFacts,
    Unreadable,
    WaitingHost,
)
from tests.unit.operations.health_support import (
    NOW_S,
    PAIR,
    PATH,
    TABLE,
    cluster,
    host,
    registered,
    replica,
    table,
)

K = FindingKind


def check(facts, **settings):
    return report_of(facts, HealthSettings(**settings)).findings


def one(facts, **settings):
    [finding] = check(facts, **settings)
    return finding


def about(facts, **settings):
    return [(finding.kind, finding.severity.word) for finding in check(facts, **settings)]


def test_a_healthy_cluster_has_no_findings():
    assert check(cluster()) == ()


# --- limits -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("column", "limit"),
    [("future_parts", 20), ("queue_size", 20), ("inserts_in_queue", 10), ("absolute_delay_s", 300)],
)
def test_a_replica_is_behind_when_a_figure_is_over_its_limit(column, limit):
    assert check(cluster(host(replicas=(replica(**{column: limit}),)))) == ()
    finding = one(cluster(host(replicas=(replica(**{column: limit + 1}),))))
    assert (finding.kind, finding.host, finding.subject) == (K.LAGGING, "n1:9000", "d.t")
    assert finding.evidence[column] == limit + 1
    assert f"{column} {limit + 1} (limit {limit})" in finding.what


def test_a_replica_that_is_behind_says_what_its_queue_waits_for():
    waiting = entry(postpone_reason="Not executing because fetches are stopped now")
    finding = one(cluster(host(replicas=(replica(queue_size=50),), queue=(waiting,))))
    assert (finding.kind, "fetches are stopped now" in finding.what) == (K.LAGGING, True)


def test_the_log_may_be_ahead_of_the_pointer_by_so_much():
    def keeper(largest):
        return KeeperFacts(tables={PATH: table(log_max_index=largest)})

    assert check(cluster(keeper=keeper(11))) == ()
    assert {f.evidence["log_lag"] for f in check(cluster(keeper=keeper(12)))} == {11}


def test_a_limit_may_be_off_and_other_for_some_tables():
    facts = cluster(host(replicas=(replica(queue_size=50),)))
    assert about(facts) == [(K.LAGGING, "warning")]
    assert check(facts, limits=TableLimits(queue_size=None)) == ()
    assert check(facts, overrides=(TableOverride("d.*", {"queue_size": 50}),)) == ()
    assert about(facts, overrides=(TableOverride("e.*", {"queue_size": 50}),)) == [(K.LAGGING, "warning")]


def test_of_two_patterns_that_fit_the_later_one_counts():
    settings = HealthSettings(
        overrides=(
            TableOverride("*", {"queue_size": 1, "log_lag": 2}),
            TableOverride("d.t", {"queue_size": 3}),
        )
    )
    assert (settings.of(TABLE).queue_size, settings.of(TABLE).log_lag) == (3, 2)


# --- why a replica is read-only -----------------------------------------------------------------------------


READ_ONLY = host(replicas=(replica(is_readonly=True, readonly_s=60, queue_size=99, absolute_delay_s=10**6),))


@pytest.mark.parametrize(
    ("in_keeper", "kind", "says"),
    [
        (table(registered("n2")), K.KEEPER_METADATA_LOST, "1 other replicas are there"),
        (replace(table(), exists=False, replicas={}), K.KEEPER_METADATA_LOST, "nor is the table"),
        (table(registered("n1", is_active=False, is_lost=True), registered("n2")), K.LOST_REPLICA, "is_lost"),
        (
            table(registered("n1", is_active=False, is_lost=True, has_been_cloned=False), registered("n2")),
            K.READ_ONLY,
            "it is new",
        ),
        (table(registered("n1", is_active=False), registered("n2")), K.READ_ONLY, "does not activate it"),
        (table(registered("n1", active_data="UUID_other"), registered("n2")), K.READ_ONLY, "UUID_other"),
    ],
)
def test_a_read_only_replica_is_one_finding_that_says_why(in_keeper, kind, says):
    facts = cluster(READ_ONLY, keeper=KeeperFacts(tables={PATH: in_keeper}))
    [finding] = [f for f in check(facts) if f.host]
    assert (finding.kind, finding.severity) == (kind, Severity.CRITICAL)
    assert says in finding.what
    assert finding.since_ms == (NOW_S - 60) * 1000
    assert (finding.evidence["path"], finding.evidence["replica"], finding.evidence["shard"]) == (
        PATH,
        "n1",
        1,
    )


def test_what_a_node_says_of_it_is_told():
    told = replica(is_readonly=True, readonly_s=60, readonly_reason="columns differ")
    keeper = KeeperFacts(tables={PATH: table(registered("n1", is_active=False), registered("n2"))})
    [finding] = [f for f in check(cluster(host(replicas=(told,)), keeper=keeper)) if f.host]
    assert "It says: columns differ" in finding.what


@pytest.mark.parametrize(
    ("since_s", "severity"), [(0, "warning"), (3, "warning"), (11, "critical"), (None, "critical")]
)
def test_a_replica_that_has_just_become_read_only_is_a_warning(since_s, severity):
    facts = cluster(host(replicas=(replica(is_readonly=True, readonly_s=since_s),)))
    assert about(facts) == [(K.READ_ONLY, severity)]


def test_a_limit_of_no_seconds_leaves_a_read_only_replica_no_time():
    facts = cluster(host(replicas=(replica(is_readonly=True, readonly_s=0),)))
    assert about(facts, limits=replace(TableLimits(), readonly_s=0)) == [(K.READ_ONLY, "critical")]


def test_a_lost_session_is_told_once_for_the_host():
    tables = [
        replica(is_readonly=True, is_session_expired=True, table=TableName("d", f"t{n}")) for n in range(9)
    ]
    finding = one(cluster(host(replicas=tuple(tables)), keeper=KeeperFacts(tables={})))
    assert (finding.kind, finding.severity, finding.subject) == (K.SESSION_LOST, Severity.CRITICAL, "")
    assert "9 of 9 tables" in finding.what and "and 4 more" in finding.what


def test_while_keeper_is_down_the_rest_is_still_told():
    hosts = [
        host(number, replicas=(replica(f"n{number}", is_readonly=True, is_session_expired=True),))
        for number in (1, 2)
    ]
    full = replace(hosts[0], disks=(DiskFacts("default", "/d", 1, 100),))
    facts = cluster(full, hosts[1], keeper=KeeperFacts(error="No server answers."))
    assert sorted(about(facts)) == [
        (K.DISK_FULL, "critical"),
        (K.KEEPER_DOWN, "critical"),
        (K.SESSION_LOST, "warning"),
        (K.SESSION_LOST, "warning"),
    ]


def test_a_keeper_that_takes_no_writes_is_full_and_not_down():
    refusal = "Keeper refuses with code -125: a quota is used up"
    facts = cluster(host(1), keeper=KeeperFacts(takes_no_writes=refusal))
    assert about(facts) == [(K.KEEPER_FULL, "critical")]
    (found,) = check(facts)
    assert refusal in found.what and "setquota" in found.advice


def test_a_keeper_without_room_for_our_session_is_full_and_not_down():
    refusal = "etcd at e:2379 refuses a session: database space exceeded."
    facts = cluster(host(1), keeper=KeeperFacts(error=refusal, takes_no_writes=refusal))
    assert about(facts)[0] == (K.KEEPER_FULL, "critical")
    assert K.KEEPER_DOWN not in dict(about(facts))


# --- replicas that are not there ----------------------------------------------------------------------------


def test_a_registered_replica_whose_host_does_not_have_the_table_is_lost():
    keeper = KeeperFacts(tables={PATH: table(registered("n1"), registered("n2", is_active=False))})
    finding = one(cluster(host(2), keeper=keeper))
    assert (finding.kind, finding.host, finding.subject) == (K.LOST_REPLICA, "n2:9000", "d.t")
    assert finding.evidence["is_table_missing"] == "yes"


def test_a_replica_is_not_called_lost_where_its_host_has_the_table_as_another_replica():
    """Its `{replica}` was changed and the table made again: an operator is not told of a lost disk."""
    old = registered("old", is_active=False, host=PAIR[0])
    keeper = KeeperFacts(tables={PATH: table(registered("n1"), registered("n2"), old)})
    finding = one(cluster(keeper=keeper))
    assert finding.kind is K.TOO_FEW_REPLICAS
    assert "inactive: old" in finding.what and "oncluster cleanup" in finding.advice


def test_a_replica_is_not_called_lost_while_a_host_of_its_shard_is_silent():
    keeper = KeeperFacts(tables={PATH: table(registered("n1"), registered("n2", is_active=False))})
    facts = cluster(host(2, silence=Silence.DOWN, error="no route", knows_replicas=False), keeper=keeper)
    finding = one(facts)
    assert (finding.kind, finding.host) == (K.HOST_DOWN, "n2:9000")
    assert finding.evidence["inactive_replicas"] == 1


def test_a_replica_of_several_servers_behind_one_address_is_known_by_its_name():
    shared = HostId("127.0.0.1", 9000)
    keeper = KeeperFacts(
        tables={PATH: table(registered("n1", host=shared), registered("n2", is_active=False, host=shared))}
    )
    assert one(cluster(host(2), keeper=keeper)).host == "n2:9000"
    keeper = KeeperFacts(
        tables={PATH: table(registered("n1", host=shared), registered("x", is_active=False, host=shared))}
    )
    assert about(cluster(host(2), keeper=keeper)) == [(K.TOO_FEW_REPLICAS, "warning")]


def test_a_host_that_lost_all_its_replicas_may_be_behind_an_address_that_others_share():
    shared = HostId("127.0.0.1", 9000)
    lost = table(registered("n1", host=shared), registered("n2", is_active=False, host=shared))
    other = table(registered("n3", host=shared), registered("n4", host=shared), path="/other")
    hosts = [host(n, replicas=(replica(f"n{n}", path="/other"),)) for n in (3, 4)]
    finding = one(cluster(host(2), *hosts, keeper=KeeperFacts(tables={PATH: lost, "/other": other})))
    assert (finding.kind, finding.host) == (K.LOST_REPLICA, "n2:9000")


def test_a_single_replica_is_information_where_the_shard_has_one_host_and_a_warning_elsewhere():
    keeper = KeeperFacts(tables={PATH: table(registered("n1"))})
    facts = cluster(host(2), keeper=keeper)
    assert about(facts) == [(K.TOO_FEW_REPLICAS, "warning")]
    alone = replace(facts, shards={1: PAIR[:1], 2: PAIR[1:]})
    assert about(alone) == [(K.TOO_FEW_REPLICAS, "info")]


def test_a_replica_that_keeper_takes_for_dead_and_its_host_for_well_is_told():
    keeper = KeeperFacts(tables={PATH: table(registered("n1"), registered("n2", is_active=False))})
    finding = one(cluster(keeper=keeper))
    assert (finding.kind, finding.evidence["active_replicas"]) == (K.TOO_FEW_REPLICAS, 1)
    assert "inactive: n2" in finding.what


# --- queues and mutations -----------------------------------------------------------------------------------


def entry(**changes):
    base = QueueEntryFacts(TABLE, "queue-1", "GET_PART", "all_0_0_0", NOW_S - 60, 3, "", "", False)
    return replace(base, **changes)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, []),
        ({"exception": "Code: 234. DB::Exception: No"}, []),
        ({"exception": "Code: 234. DB::Exception: No", "tries": 11}, [(K.STUCK_QUEUE, "critical")]),
        (
            {"exception": "Code: 234. DB::Exception: No", "created_s": NOW_S - 601},
            [(K.STUCK_QUEUE, "critical")],
        ),
        ({"exception": "Code: 40. DB::Exception: bad", "tries": 11}, [(K.BROKEN_PARTS, "critical")]),
        ({"created_s": NOW_S - 3601, "postpone_reason": "stopped"}, [(K.STUCK_QUEUE, "warning")]),
        ({"created_s": NOW_S - 3601, "is_executing": True}, []),
    ],
)
def test_entries_are_stuck_when_they_fail_or_wait_for_long(changes, expected):
    assert about(cluster(host(replicas=(replica(),), queue=(entry(**changes),)))) == expected


def mutation(**changes):
    return replace(MutationFacts(TABLE, "0000000001", "UPDATE x = 1 WHERE 1", NOW_S - 1000, 3), **changes)


def test_a_mutation_is_one_finding_however_many_replicas_tell_of_it():
    hosts = [
        host(n, replicas=(replica(f"n{n}"),), mutations=(mutation(fail_reason="boom" if n == 2 else ""),))
        for n in (1, 2)
    ]
    finding = one(cluster(*hosts))
    assert (finding.kind, finding.severity, finding.host) == (K.STUCK_MUTATION, Severity.CRITICAL, "")
    assert (finding.evidence["teller"], finding.evidence["mutation_id"]) == ("n2:9000", "0000000001")
    assert "boom" in finding.what


def test_entries_of_a_mutation_that_fails_are_not_told_beside_it():
    failing = entry(type="MUTATE_PART", exception="Code: 395. throwIf", tries=99)
    hosts = [
        host(1, replicas=(replica(),), queue=(failing,), mutations=(mutation(fail_reason="throwIf"),)),
        host(2, replicas=(replica("n2"),), mutations=(mutation(),)),
    ]
    assert about(cluster(*hosts)) == [(K.STUCK_MUTATION, "critical")]
    alone = replace(hosts[0], mutations=())
    assert about(cluster(alone)) == [(K.STUCK_QUEUE, "critical")]


def test_a_mutation_that_does_not_fail_has_more_time():
    hosts = [host(n, replicas=(replica(f"n{n}"),), mutations=(mutation(),)) for n in (1, 2)]
    assert check(cluster(*hosts)) == ()
    assert about(cluster(*hosts), limits=TableLimits(mutation_age_s=999)) == [(K.STUCK_MUTATION, "warning")]


def test_damage_waiting_checks_and_parts_set_aside_are_one_finding_of_the_worst_severity():
    whole = host(
        replicas=(replica(parts_to_check=11),),
        detached=(DetachedFacts(TABLE, 2, NOW_S - 7200),),
        unreadable=(Unreadable(TABLE, "Code: 40. bad", is_damage=True),),
    )
    finding = one(cluster(whole))
    assert (finding.kind, finding.severity) == (K.BROKEN_PARTS, Severity.CRITICAL)
    assert "11 parts to be checked" in finding.what and "2 broken parts in detached/" in finding.what
    assert about(cluster(replace(whole, unreadable=(), replicas=(replica(),)))) == [(K.BROKEN_PARTS, "info")]


# --- hosts, Keeper, the queue of DDL ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("silence", "kind", "severity"),
    [
        (Silence.DOWN, K.HOST_DOWN, "critical"),
        (Silence.REFUSED, K.NOT_CHECKED, "warning"),
        (Silence.FAILING, K.NOT_CHECKED, "warning"),
        (Silence.GARBAGE, K.NOT_CHECKED, "warning"),
    ],
)
def test_a_silent_host_is_a_finding_and_the_others_are_checked(silence, kind, severity):
    facts = cluster(
        host(1, silence=silence, error="x", knows_replicas=False),
        host(2, replicas=(replica("n2", queue_size=21),)),
    )
    assert (kind, severity) in about(facts) and (K.LAGGING, "warning") in about(facts)


def test_disks_are_judged_by_what_is_free():
    def with_free(percent):
        return cluster(host(replicas=(replica(),), disks=(DiskFacts("d1", "/d1", percent, 100),)))

    assert check(with_free(15)) == ()
    assert about(with_free(14)) == [(K.DISK_FULL, "warning")]
    assert about(with_free(4)) == [(K.DISK_FULL, "critical")]
    assert check(with_free(4), disk_free_percent=None, disk_critical_percent=None) == ()


def test_a_clock_is_compared_with_keepers_and_the_error_of_the_measurement_is_in_its_favour():
    def skewed(ms, error_ms=10.0):
        keeper = KeeperFacts(tables={PATH: table()}, clock=ClockFacts(5000.0, 0.0))
        clock = ClockFacts(5000.0 + ms, error_ms)
        return cluster(host(replicas=(replica(),), clock=clock), keeper=keeper)

    assert check(skewed(900)) == ()
    assert about(skewed(-3600_000)) == [(K.CLOCK_SKEW, "warning")]
    assert "behind Keeper's" in one(skewed(-3600_000)).what
    assert check(skewed(3000, error_ms=2500)) == ()


def test_broken_files_are_critical_and_many_files_a_warning():
    spool = SpoolFacts(TableName("d", "all"), "/p/1", 5, 100, 0, 0, "", False)
    facts = host(replicas=(replica(),), spools=(spool, replace(spool, data_path="/p/2", broken_files=1)))
    assert about(cluster(facts)) == [(K.BROKEN_SPOOL, "critical")]
    assert sorted(about(cluster(facts), spool_files=4)) == [
        (K.BROKEN_SPOOL, "critical"),
        (K.SPOOL_BACKLOG, "warning"),
        (K.SPOOL_BACKLOG, "warning"),
    ]


def test_a_few_files_that_are_refused_again_and_again_are_a_warning_with_the_reason():
    spool = SpoolFacts(TableName("d", "all"), "/p/1", 1, 100, 0, 8, "Code: 16. No such column k", False)
    facts = cluster(host(replicas=(replica(),), spools=(spool,)))
    finding = one(facts)
    assert (finding.kind, finding.severity.word) == (K.SPOOL_BACKLOG, "warning")
    assert "Code: 16. No such column k" in finding.what
    assert "do not fit the shard's table any more, change that table" in finding.advice

    assert check(facts, spool_errors=None) == check(facts, spool_errors=9) == ()
    delivered = replace(spool, files=0)
    assert check(cluster(host(replicas=(replica(),), spools=(delivered,)))) == ()


def test_a_missing_permission_is_a_finding_that_names_the_grant():
    gap = NotSaid("system.replicas", "Not enough privileges", Gap.DENIED, "SELECT ON system.replicas")
    finding = one(cluster(host(replicas=(replica(),), not_said=(gap,))))
    assert finding.kind is K.NOT_CHECKED
    assert "GRANT SELECT ON system.replicas" in finding.advice


def test_a_quota_that_ends_in_the_middle_is_one_finding_that_says_when_to_ask_again():
    why = "Quota for user `watcher` for 3600s has been exceeded"
    gaps = tuple(NotSaid(what, why, Gap.OVER_QUOTA) for what in ("system.mutations", "its clock"))
    finding = one(cluster(host(replicas=(replica(),), not_said=gaps)))
    assert finding.kind is K.NOT_CHECKED
    assert "system.mutations, its clock" in finding.what and why in finding.what
    assert "until its interval ends" in finding.advice


def test_what_an_old_server_lacks_is_a_note_for_all_hosts_at_once():
    gap = NotSaid("system.distribution_queue", "it is not there", Gap.ABSENT)
    facts = cluster(*(host(n, replicas=(replica(f"n{n}"),), not_said=(gap,)) for n in (1, 2)))
    report = report_of(facts, HealthSettings())
    assert report.findings == ()
    assert report.notes == (
        "system.distribution_queue was not checked on n1:9000, n2:9000: it is not there.",
    )


def test_keeper_is_judged_by_latency_size_and_by_each_of_its_servers():
    servers = (
        KeeperServerFacts("z1:2181", True, "leader", {"latency_avg_ms": 1, "znodes": 2_000_000}),
        KeeperServerFacts("z2:2181", True, "follower", {"latency_avg_ms": 500, "outstanding": 7}),
        KeeperServerFacts("z3:2181", False),
    )
    keeper = KeeperFacts(latency_ms=300, tables={PATH: table()}, servers=servers)
    found = [(f.kind, f.severity.word, f.subject) for f in check(cluster(keeper=keeper))]
    assert found == [
        (K.KEEPER_DOWN, "warning", ""),
        (K.KEEPER_FULL, "warning", ""),
        (K.KEEPER_SLOW, "warning", ""),
        (K.KEEPER_SLOW, "warning", "z2:2181"),
    ]


def test_an_entry_that_waits_says_for_whom_and_why():
    entry = DdlFacts(
        "query-0000000007",
        (NOW_S - 900) * 1000,
        (
            WaitingHost(PAIR[0], is_running=False),
            WaitingHost(PAIR[1], is_running=False),
            WaitingHost(HostId("else", 9000), is_running=True),
        ),
        "DROP TABLE x",
    )
    down = host(2, silence=Silence.DOWN, error="x", knows_replicas=False)
    [finding] = [f for f in check(cluster(down, ddl=(entry,))) if f.kind is K.STUCK_DDL]
    assert finding.severity is Severity.CRITICAL
    assert "n2:9000: down; n1:9000: up and not executing it; else:9000: not in this cluster" in finding.what
    assert finding.since_ms == (NOW_S - 900) * 1000
    assert "restart the server" in finding.advice and "another `distributed_ddl`" in finding.advice
    young = replace(entry, created_ms=(NOW_S - 299) * 1000)
    assert check(cluster(ddl=(young,))) == ()


def test_the_worst_comes_first():
    facts = cluster(
        host(
            replicas=(replica(queue_size=21),),
            disks=(DiskFacts("a", "/a", 1, 100),),
            detached=(DetachedFacts(TABLE, 1, NOW_S),),
        )
    )
    assert [f.severity.word for f in check(facts)] == ["critical", "warning", "info"]
