"""Operations: findings, plans, records, carrying out."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import pytest

from engine.env import SystemEnv
from engine.errors import (
    Busy,
    ConfigError,
    ConnectionLoss,
    NodeUnavailable,
    Refused,
    ReplyLost,
    SessionExpired,
    SqlError,
)
from engine.operations.act import Act, ActResult, ActState, Danger, Plan
from engine.operations.carrying_out import ApprovalMissing, carry_out, lock_path
from engine.operations.finding import Finding, FindingKind, Severity, worst
from engine.operations.records import Records, RecordsUnavailable, Sample
from tests.unit.operations.support import CLUSTER, HOSTS, simulated, site

DONE = ActResult(ActState.DONE)


def act(subject, **facts):
    return Act("remove", subject, f"remove {subject}", "nobody needs it", **facts)


def plan(*subjects, danger=Danger.SAFE):
    return Plan("cleanup", CLUSTER, tuple(act(subject, danger=danger) for subject in subjects))


def finding(**facts):
    base = Finding(FindingKind.LAGGING, Severity.WARNING, CLUSTER, "n1 is late.", "Wait.", "n1", "d.t")
    return replace(base, **facts)


# --- values -------------------------------------------------------------------------------------------------


def test_a_trouble_keeps_its_fingerprint_when_its_figures_change():
    assert finding().fingerprint == finding(evidence={"delay_s": 9}, severity=Severity.CRITICAL).fingerprint
    assert finding().fingerprint != finding(subject="d.u").fingerprint


def test_a_finding_survives_json():
    before = finding(evidence={"delay_s": 9, "ratio": 0.5, "why": "x"}, since_ms=7)
    assert Finding.from_json(json.loads(json.dumps(before.to_json()))) == before


def test_the_worst_of_no_findings_is_nothing():
    assert worst([]) is None
    assert worst([finding(), finding(severity=Severity.CRITICAL)]) is Severity.CRITICAL


def test_a_plan_survives_json_and_an_edited_one_is_refused():
    before = plan("a", "b")
    data = json.loads(json.dumps(before.to_json()))
    assert Plan.from_json(data) == before
    data["acts"][0]["subject"] = "c"
    with pytest.raises(ValueError, match="changed"):
        Plan.from_json(data)


# --- carrying out -------------------------------------------------------------------------------------------


def carried(tmp_path, performer, the_plan, *, approved_by="", runs=1):
    """The report of the last of some runs under one id, and the records."""

    async def main(env, server):
        where = site(tmp_path, env, await server.connect())
        for _ in range(runs):
            report = await carry_out(where, the_plan, performer, run_id="r", approved_by=approved_by)
        return report, where.records

    return simulated(main)


def test_each_act_is_recorded_before_it_happens(tmp_path):
    seen = []

    async def perform(one):
        records = Records(tmp_path / "records.db", env=SystemEnv())
        seen.append((one.subject, records.acts_of("r")[one.act_id].state))
        return DONE

    report, _ = carried(tmp_path, perform, plan("a", "b"))
    assert seen == [("a", ActState.STARTED), ("b", ActState.STARTED)]
    assert report.is_good


def test_a_run_that_is_resumed_does_only_what_is_left(tmp_path):
    tried = []

    async def perform(one):
        tried.append(one.subject)
        if tried == ["a", "b"]:
            raise KeyboardInterrupt
        return DONE

    async def main(env, server):
        where = site(tmp_path, env, await server.connect())
        with pytest.raises(KeyboardInterrupt):
            await carry_out(where, plan("a", "b", "c"), perform, run_id="r")
        assert where.records.acts_of("r")[act("b").act_id].state is ActState.STARTED
        return await carry_out(where, plan("a", "b", "c"), perform, run_id="r")

    report = simulated(main)
    assert tried == ["a", "b", "b", "c"]
    assert report.count(ActState.DONE) == 3


def test_what_may_have_happened_stays_begun_and_is_looked_at_again(tmp_path):
    answers = [ConnectionLoss("gone"), ActResult(ActState.NOT_NEEDED, "it is gone already")]

    async def perform(one):
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    report, records = carried(tmp_path, perform, plan("a"), runs=2)
    assert report.results[0][1].state is ActState.NOT_NEEDED
    assert records.acts_of("r")[act("a").act_id].state is ActState.NOT_NEEDED


def test_an_act_that_fails_does_not_stop_the_others(tmp_path):
    async def perform(one):
        if one.subject == "a":
            raise SqlError(60, "There is no d.t.")
        return DONE

    report, _ = carried(tmp_path, perform, plan("a", "b"))
    assert [result.state for _, result in report.results] == [ActState.FAILED, ActState.DONE]
    assert "Code: 60" in report.results[0][1].detail
    assert not report.is_good


def test_another_plan_under_the_id_of_a_run_is_refused(tmp_path):
    async def perform(one):
        return DONE

    carried(tmp_path, perform, plan("a"))
    with pytest.raises(Refused, match="another plan"):
        carried(tmp_path, perform, plan("a", "b"))


@pytest.mark.parametrize(
    "changes",
    [
        {"kind": "move"},
        {"host": "n2"},
        {"subject": "b"},
        {"payload": {"sql": "DROP TABLE e"}},
        {"danger": Danger.DESTROYS},
    ],
)
def test_what_was_approved_is_what_runs_also_when_the_sentence_stays_the_same(tmp_path, changes):
    approved = Plan("cleanup", CLUSTER, (act("a", host="n1", payload={"sql": "DROP TABLE d"}),))
    other = replace(approved, acts=(replace(approved.acts[0], **changes),))
    assert other.acts[0].act_id != approved.acts[0].act_id and other.checksum != approved.checksum
    edited = {**other.to_json(), "checksum": approved.checksum}
    with pytest.raises(ValueError, match="was changed after it was made"):
        Plan.from_json(edited)

    async def perform(one):
        return DONE

    carried(tmp_path, perform, approved)
    with pytest.raises(Refused, match="another plan"):
        carried(tmp_path, perform, other, approved_by="ada")


def test_a_plan_is_of_one_operation_on_one_cluster():
    assert (
        len({replace(plan("a"), **other).checksum for other in ({}, {"operation": "x"}, {"cluster": "x"})})
        == 3
    )


def test_an_act_that_is_told_in_other_words_is_the_same_act():
    assert replace(act("a"), what="x", why="y").act_id == act("a").act_id


def test_what_destroys_needs_somebody_who_approves(tmp_path):
    async def perform(one):
        raise AssertionError("nobody approved")

    with pytest.raises(ApprovalMissing):
        carried(tmp_path, perform, plan("a", danger=Danger.DESTROYS))
    assert not Records(tmp_path / "records.db", env=SystemEnv()).runs(CLUSTER)


def test_the_second_operator_is_refused_with_the_name_of_the_first(tmp_path):
    async def main(env, server):
        begun, go_on = asyncio.Event(), asyncio.Event()

        async def perform(one):
            begun.set()
            await go_on.wait()
            return DONE

        ada = site(tmp_path, env, await server.connect(), operator="ada")
        bob = site(tmp_path, env, await server.connect(), operator="bob")
        first = asyncio.create_task(carry_out(ada, plan("a"), perform, run_id="1"))
        await begun.wait()
        with pytest.raises(Busy) as busy:
            await carry_out(bob, replace(plan("a"), operation="repair"), perform, run_id="2")
        assert busy.value.holder == "ada, cleanup"
        go_on.set()
        await first
        return await carry_out(bob, plan("a"), perform, run_id="2")

    assert simulated(main).is_good


def test_who_lost_the_lock_stops_before_the_next_act(tmp_path):
    async def main(env, server):
        keeper = await server.connect()

        async def perform(one):
            server.expire_session(keeper.session_id)
            successor = site(tmp_path, env, await server.connect(), operator="bob")
            await carry_out(successor, plan(), perform, run_id="2")
            return DONE

        where = site(tmp_path, env, keeper)
        with pytest.raises(SessionExpired):
            await carry_out(where, plan("a", "b"), perform, run_id="1")
        return where.records.acts_of("1")

    assert list(simulated(main)) == [act("a").act_id]


def test_who_had_the_lock_taken_away_stops_although_the_session_lives(tmp_path):
    """Somebody has removed its node by hand, and another operation is at work since."""

    async def main(env, server):
        keeper, over = await server.connect(), asyncio.Event()
        bob = site(tmp_path, env, await server.connect(), operator="bob")
        others: list[asyncio.Task] = []

        async def goes_on(one):
            await over.wait()
            return DONE

        async def perform(one):
            await bob.keeper.remove(f"{lock_path(bob)}/holder")
            others.append(asyncio.create_task(carry_out(bob, plan("c", "d"), goes_on, run_id="2")))
            await env.sleep(1)
            return DONE

        where = site(tmp_path, env, keeper)
        with pytest.raises(Busy) as busy:
            await carry_out(where, plan("a", "b"), perform, run_id="1")
        assert busy.value.holder == "bob, cleanup"
        over.set()
        assert (await others[0]).is_good, "and its lock is not given back by the one before"
        return where.records.acts_of("1")

    assert list(simulated(main)) == [act("a").act_id]


# --- asking -------------------------------------------------------------------------------------------------


def test_who_does_not_answer_or_answers_garbage_is_an_error_in_its_place(tmp_path):
    async def main(env, server):
        class Client:
            url = "http://x"

        where = site(tmp_path, env, None, clients={host: Client() for host in HOSTS}, patience_s=3)

        async def question(host, client):
            match host.host:
                case "n1":
                    return 1
                case "n2":
                    await env.sleep(60)
                case "n3":
                    raise NodeUnavailable("refused")
            return int("<html>")

        return await where.ask_all(question)

    answers = simulated(main)
    assert [type(answer) for answer in answers.values()] == [int, ReplyLost, NodeUnavailable, NodeUnavailable]
    assert "not ClickHouse's" in str(answers[HOSTS[3]])


# --- records ------------------------------------------------------------------------------------------------


@pytest.fixture
def records(tmp_path):
    return Records(tmp_path / "records.db", env=SystemEnv())


def test_a_finding_is_new_then_goes_on_then_is_resolved_and_may_come_again(records):
    assert [record.finding for record in records.see_findings(CLUSTER, "health", [finding()]).new] == [
        finding()
    ]
    later = finding(evidence={"delay_s": 5})
    seen = records.see_findings(CLUSTER, "health", [later])
    assert [record.finding for record in seen.continuing] == [later]
    assert not seen.new
    resolved = records.see_findings(CLUSTER, "health", []).resolved
    assert [record.finding for record in resolved] == [later]
    assert records.open_findings(CLUSTER) == ()
    assert [record.finding for record in records.resolved_findings(CLUSTER, since_ms=0)] == [later]
    assert len(records.see_findings(CLUSTER, "health", [later]).new) == 1


def test_one_look_does_not_resolve_what_another_found(records):
    records.see_findings(CLUSTER, "drift", [finding(kind=FindingKind.SCHEMA_DRIFT)])
    assert not records.see_findings(CLUSTER, "health", []).resolved
    assert len(records.open_findings(CLUSTER, "drift")) == 1


def test_open_findings_come_the_worst_first(records):
    bad = finding(severity=Severity.CRITICAL, subject="d.u")
    records.see_findings(CLUSTER, "health", [finding(), bad])
    assert [record.finding for record in records.open_findings(CLUSTER)] == [bad, finding()]


def test_samples_come_in_the_order_of_time_and_go_by_age(records):
    for at_ms in (3, 1, 2, 2):
        records.add_samples(CLUSTER, [Sample("delay_s", at_ms / 2, "n1", "d.t", at_ms)])
    assert [sample.at_ms for sample in records.samples(CLUSTER, "delay_s", host="n1")] == [1, 2, 3]
    assert records.samples(CLUSTER, "delay_s", host="n2") == ()
    assert [sample.at_ms for sample in records.samples(CLUSTER, "delay_s", limit=1)] == [3]
    assert records.prune_samples(before_ms=3) == 2


def test_thousands_of_samples_are_stored_at_once(records):
    records.add_samples(CLUSTER, (Sample("delay_s", 1, f"n{i}", at_ms=i + 1) for i in range(2000)))
    assert len(records.samples(CLUSTER, "delay_s")) == 2000


def test_an_alert_counts_how_often_it_was_sent_until_it_is_forgotten(records):
    for _ in range(2):
        records.record_message(CLUSTER, "log", told=["f"])
    assert records.alerts(CLUSTER, "log")["f"].times_sent == 2
    records.record_message(CLUSTER, "log", over=["f"])
    assert records.alerts(CLUSTER, "log") == {}


def test_records_say_where_they_cannot_be_kept(tmp_path):
    with pytest.raises(ConfigError, match="mysql"):
        Records("mysql://x/y", env=SystemEnv())
    (tmp_path / "file").write_text("")
    with pytest.raises(RecordsUnavailable):
        Records(tmp_path / "file" / "records.db", env=SystemEnv()).alerts(CLUSTER, "log")
    with pytest.raises(RecordsUnavailable):
        Records("/proc/oncluster/records.db", env=SystemEnv()).record_message(CLUSTER, "log", told=["f"])
    (tmp_path / "text.db").write_text("no database" * 100)
    with pytest.raises(RecordsUnavailable):
        Records(tmp_path / "text.db", env=SystemEnv()).alerts(CLUSTER, "log")
