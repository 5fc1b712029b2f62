"""Why a cluster does not move, in words."""

from __future__ import annotations

from dataclasses import replace

import pytest

from engine.errors import Code
from engine.operations.overview.model import (
    Level,
    Mutation,
    Part,
    PartState,
    Presence,
    QueueTask,
    ReplicatedTable,
    SpoolRow,
    Stuck,
    TaskForm,
)
from engine.operations.overview.stuck_servers import explain
from engine.operations.overview.why_stuck import why_stuck
from tests.unit.operations.overview_support import NOW_MS, A, B, C, down, failure, picture, queue, task, up


def only(items: tuple[Stuck, ...]) -> Stuck:
    (item,) = items
    return item


def test_a_cluster_that_works_has_nothing_to_say() -> None:
    assert picture(queue(task(1, "ddd"))).stuck == ()


def test_a_task_of_a_moment_ago_is_not_stuck() -> None:
    assert picture(queue(task(1, "wdr", age_s=3))).stuck == ()


def test_only_the_oldest_task_of_a_host_has_a_reason_of_its_own() -> None:
    item = only(picture(queue(task(3, "dwd", age_s=20), task(2, "dwd", age_s=40), task(1, "drd"))).stuck)
    assert item.task == "query-0000000001"
    assert item.host == B
    assert "and 2 tasks behind it" in item.what
    assert "It is executing it" in item.why


def test_a_host_that_is_off_line_in_every_way() -> None:
    item = only(picture(queue(task(1, "ddA".lower()), presence={C: Presence.AWAY}), down(C)).stuck)
    assert item.host == C
    assert "neither over HTTP" in item.why
    assert "Start the server" in item.advice


def test_a_worker_without_a_session_on_a_server_that_answers() -> None:
    item = only(picture(queue(task(1, "dda"), presence={C: Presence.AWAY})).stuck)
    assert "no session with Keeper, though the server answers over HTTP" in item.why


def test_a_replica_waits_for_the_other_one_of_its_shard() -> None:
    said = {item.host: item for item in picture(queue(task(1, "wrd"))).stuck}
    assert f"It waits for {B} of its shard" in said[A].why
    assert "It is executing it" in said[B].why


def test_hosts_that_wait_alike_are_one_sentence() -> None:
    item = only(picture(queue(task(2, "wdw", age_s=50), task(1, "www"))).stuck)
    assert item.what.startswith(f"{A}, {B} and {C} have not done query-0000000001")
    assert "and 1 task behind it" in item.what


def test_a_replica_of_another_shard_is_no_reason() -> None:
    said = {item.host: item for item in picture(queue(task(1, "wdr"))).stuck}
    assert "has not begun" in said[A].why


def test_an_entry_for_another_cluster_in_the_way_is_said_without_its_text() -> None:
    part = queue(task(7, "wdd"))
    assert part.value is not None
    before = replace(part.value, foreign_first={A: "query-0000000006", B: "query-0000000001"})
    item = only(picture(replace(part, value=before)).stuck)
    assert item.why == "It has query-0000000006 before it, which is for another cluster with the same queue."
    behind = replace(part.value, foreign_first={A: "query-0000000008"})
    assert "has not begun" in only(picture(replace(part, value=behind)).stuck).why


def test_an_alter_that_waits_for_a_failing_mutation_says_so() -> None:
    mutation = Mutation("shop.t", "0000000001", "DELETE WHERE 1", NOW_MS, 3, "Memory limit exceeded")
    said = picture(queue(task(1, "rdd")), up(A, mutations=(mutation,))).stuck
    assert "mutation 0000000001 of shop.t fails" in next(i for i in said if i.task).advice


def test_what_is_old_is_critical_and_stands_first() -> None:
    said = picture(queue(task(2, "dwd", age_s=60), task(1, "wdd", age_s=7200))).stuck
    assert [(item.host, item.level) for item in said] == [(A, Level.CRITICAL), (B, Level.WARNING)]


def test_hosts_that_failed_alike_are_one_sentence() -> None:
    failed = {A: failure(f"Code: 57. {A}: exists"), C: failure(f"Code: 57. {C}: exists")}
    item = only(picture(queue(task(1, "fdf", failures=failed))).stuck)
    assert f"failed on {A} and {C}" in item.what
    assert "Code: 57" in item.why


def test_a_host_that_does_not_know_the_entry_s_version_is_sent_an_older_one() -> None:
    failed = {A: failure("Unknown DDLLogEntry format version: 2", code=Code.UNKNOWN_FORMAT_VERSION)}
    advice = only(picture(queue(task(1, "fdd", failures=failed))).stuck).advice
    assert "smaller distributed_ddl_entry_format_version" in advice and "Remove the cause" not in advice


def test_a_failure_that_was_made_good_is_history() -> None:
    """A migration's statement is sent again to the host on which it failed, and to no other."""
    failed = {A: failure("exists"), C: failure("exists")}
    first = task(1, "fdf", failures=failed, query="CREATE TABLE t")
    item = only(picture(queue(task(2, "d..", query="CREATE TABLE t"), first)).stuck)
    assert item.host == C
    assert f"failed on {C}" in item.what
    # Another statement, and one that was done before, have nothing to do with it.
    for other in (task(2, "ddd", query="CREATE TABLE u"), task(0, "ddd", query="CREATE TABLE t")):
        item = only(picture(queue(*sorted((other, first), key=lambda one: one.name, reverse=True))).stuck)
        assert f"failed on {A} and {C}" in item.what


def test_a_failure_of_last_week_is_history() -> None:
    failed = {A: failure("exists")}
    assert picture(queue(task(1, "fdd", age_s=7 * 86400, failures=failed))).stuck == ()


def test_keeper_that_is_away_is_said_first() -> None:
    part = Part(PartState.FAILED, None, NOW_MS, "No session with Keeper within 2 s")
    said = picture(part, down(A)).stuck
    assert said[0].what == "The queue cannot be read."
    assert "No session" in said[0].why
    assert {item.host for item in said[1:]} == {A}


def test_a_task_that_nobody_can_read() -> None:
    item = only(picture(queue(task(1, "...", form=TaskForm.UNREADABLE))).stuck)
    assert "cannot be read" in item.what


def test_a_task_whose_initiator_was_interrupted() -> None:
    said = picture(queue(task(1, "www", form=TaskForm.WITHOUT_DIRECTORIES))).stuck
    assert any("was interrupted" in item.why for item in said)


def test_tables_that_take_no_rows() -> None:
    tables = (
        ReplicatedTable("shop.t", is_readonly=True, is_session_expired=True),
        ReplicatedTable("shop.u", is_readonly=True),
    )
    said = picture(None, up(B, tables=tables)).stuck
    assert [item.level for item in said] == [Level.CRITICAL, Level.CRITICAL]
    assert {item.what for item in said} == {
        f"shop.t on {B} takes no rows.",
        f"shop.u on {B} takes no rows.",
    }


def test_a_replica_that_cannot_fetch_a_part() -> None:
    entry = QueueTask("shop.t", "GET_PART", "all_0_0_0", NOW_MS - 60_000, 12, "No active replica has part x")
    item = only(picture(None, up(C, queue_tasks=(entry,))).stuck)
    assert "GET_PART all_0_0_0 was tried 12 times" in item.what
    assert "bring it back" in item.advice


def test_one_host_does_not_fill_the_page() -> None:
    entries = tuple(
        QueueTask("shop.t", "GET_PART", f"all_{n}_{n}_0", NOW_MS - 60_000, 12, "broken") for n in range(20)
    )
    assert len(picture(None, up(C, queue_tasks=entries)).stuck) == 3


@pytest.mark.parametrize(
    ("row", "words"),
    [
        (SpoolRow("d.t", 2, 10, 1, 5, False, "bad"), "1 file of d.t on a:9000 can never be sent"),
        (SpoolRow("d.t", 2, 10, 0, 0, True), "2 files of d.t wait on a:9000"),
        (SpoolRow("d.t", 1, 10, 0, 3, False, "Connection refused"), "1 file of d.t waits on a:9000"),
    ],
)
def test_spool(row: SpoolRow, words: str) -> None:
    assert words in only(picture(None, up(A, spool=(row,))).stuck).what


def test_nothing_is_seen_yet() -> None:
    overview = picture()
    assert why_stuck(type(overview)("shop", NOW_MS, overview.shards)) == ()


def test_an_unknown_error_gets_an_advice_too() -> None:
    assert "tried again" in explain("what is this")
