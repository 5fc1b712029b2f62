"""The checkers of the simulation see bad histories, made by hand, and leave a good one alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from engine.ddl.entry import DDLLogEntry
from engine.ddl.outcome import HostOutcome, HostState
from engine.ddl.outcome_record import OutcomeRecord
from engine.ddl.status import ExecutionStatus
from engine.names import HostId
from engine.testing.ddl.checkers import CHECKERS, violations
from engine.testing.ddl.history import (
    Acknowledged,
    Changed,
    Created,
    Event,
    Expectation,
    History,
    Removed,
    SeenEffect,
)
from engine.testing.ddl.model import Effect

ROOT = "/clickhouse/task_queue/ddl"
OUTCOMES = "/clickhouse/task_queue/oncluster/ddl/outcomes"
A, B = HostId("a", 9000), HostId("b", 9000)
FIRST, SECOND = "query-0000000000", "query-0000000001"


def entry_data(token: str = "t1") -> bytes:
    return DDLLogEntry(5, f"/* oncluster token={token} */ CREATE TABLE x ON CLUSTER c", (A, B)).to_bytes()


def record(**states: HostState) -> bytes:
    hosts = tuple(HostOutcome(HostId(name, 9000), state) for name, state in states.items())
    return OutcomeRecord(FIRST, 1, 0, "t1", "", "q", hosts).to_bytes()


class Script:
    """A history, line by line."""

    def __init__(self) -> None:
        self.history = History(
            live_hosts=frozenset({"a", "b"}), shard_of={"a": "s", "b": "s"}, lifetime_s=100.0, max_tasks=10
        )
        self.now_s = 0.0

    def at(self, now_s: float) -> Script:
        self.now_s = now_s
        return self

    def happens(self, *events: Event, actor: str = "", by_session_end: bool = False) -> Script:
        self.history.record(self.now_s, events, actor=actor, by_session_end=by_session_end)
        return self

    def enqueued(self, name: str = FIRST, token: str = "t1", **expected: object) -> Script:
        self.happens(Created(f"{ROOT}/{name}", entry_data(token)))
        self.happens(Created(f"{ROOT}/{name}/active"), Created(f"{ROOT}/{name}/finished"))
        expectation = Expectation(hosts=(str(A), str(B)), objects=("d.x",))
        self.history.expectations[name] = replace(expectation, **expected)  # type: ignore[arg-type]
        self.history.acknowledged.append(Acknowledged(token, name))
        return self

    def effect(self, host: HostId, name: str = FIRST, *, shard: str = "") -> Script:
        seen = SeenEffect(self.history.tick(), Effect(host.host, name, "d.x", "create"), shard)
        self.history.effects.append(seen)
        return self

    def finished(self, host: HostId, name: str = FIRST, code: int = 0, message: str = "") -> Script:
        data = ExecutionStatus(code, message).to_bytes()
        return self.happens(Created(f"{ROOT}/{name}/finished/{host}", data), actor=host.host)

    def removed(self, *, hosts: tuple[HostId, ...] = (A, B), outcome: bytes | None = None) -> Script:
        finished = [Removed(f"{ROOT}/{FIRST}/finished/{host}") for host in hosts]
        written = [] if outcome is None else [Created(f"{OUTCOMES}/{FIRST}", outcome)]
        return self.happens(
            Removed(f"{ROOT}/{FIRST}/active"),
            *finished,
            Removed(f"{ROOT}/{FIRST}/finished"),
            Removed(f"{ROOT}/{FIRST}"),
            *written,
        )

    def done_everywhere(self) -> Script:
        return self.effect(A).finished(A).effect(B).finished(B)


def promises(script: Script) -> set[str]:
    return {violation.promise for violation in violations(script.history)}


def test_a_good_history_breaks_no_promise() -> None:
    script = Script().enqueued().done_everywhere()
    assert promises(script) == set()
    both = record(a=HostState.DONE, b=HostState.DONE)
    assert promises(script.at(101.0).removed(outcome=both)) == set()


def test_a_good_once_per_shard_history_breaks_no_promise() -> None:
    script = Script().enqueued(runs_once_per_shard=True).effect(A, shard="s")
    script.happens(
        Created(f"{ROOT}/{FIRST}/shards/a:9000,b:9000/executed", str(A).encode()),
        Created(f"{ROOT}/{FIRST}/finished/{A}", b"0\n"),
    )
    assert promises(script.finished(B)) == set()


def test_an_entry_that_expired_for_a_host_breaks_no_promise_when_it_is_old_and_recorded() -> None:
    script = Script().enqueued().effect(A).finished(A).at(101.0)
    expired = record(a=HostState.DONE, b=HostState.EXPIRED)
    assert promises(script.removed(hosts=(A,), outcome=expired)) == set()


BAD: dict[str, tuple[str, Callable[[], Script]]] = {
    "an effect twice": ("D1", lambda: Script().enqueued().done_everywhere().effect(A)),
    "done without effect": ("D1", lambda: Script().enqueued().effect(A).finished(A).finished(B)),
    "failed with effect": (
        "D1",
        lambda: Script().enqueued().effect(A).finished(A, code=57, message="there").effect(B).finished(B),
    ),
    "one token twice": (
        "D2",
        lambda: Script().enqueued().done_everywhere().happens(Created(f"{ROOT}/{SECOND}", entry_data())),
    ),
    "acknowledged as another entry": (
        "D2",
        lambda: _acknowledge(Script().enqueued().done_everywhere(), "t1", SECOND),
    ),
    "effects out of order": (
        "D3",
        lambda: Script().enqueued().enqueued(SECOND, "t2").effect(A, SECOND).effect(A, FIRST),
    ),
    "done before the effect": (
        "D4",
        lambda: Script().enqueued().finished(A).effect(A).effect(B).finished(B),
    ),
    "no outcome on a host that lives": ("D5", lambda: Script().enqueued().effect(A).finished(A)),
    "an effect twice on a shard": (
        "D6",
        lambda: Script().enqueued(runs_once_per_shard=True).effect(A, shard="s").effect(B, shard="s"),
    ),
    "executed for a shard without effect": (
        "D6",
        lambda: (
            Script()
            .enqueued(runs_once_per_shard=True)
            .happens(Created(f"{ROOT}/{FIRST}/shards/a:9000,b:9000/executed", str(A).encode()))
            .finished(A)
            .finished(B)
        ),
    ),
    "removed while active": (
        "C1",
        lambda: (
            Script()
            .enqueued()
            .done_everywhere()
            .happens(Created(f"{ROOT}/{FIRST}/active/{A}"), actor="a")
            .at(101.0)
            .removed(outcome=record(a=HostState.DONE, b=HostState.DONE))
        ),
    ),
    "a claim taken away by another host": (
        "C1",
        lambda: (
            Script()
            .enqueued()
            .done_everywhere()
            .happens(Created(f"{ROOT}/{FIRST}/active/{A}"), actor="a")
            .happens(Removed(f"{ROOT}/{FIRST}/active/{A}"), actor="b")
        ),
    ),
    "removed young and unfinished": (
        "C1",
        lambda: (
            Script()
            .enqueued()
            .effect(A)
            .finished(A)
            .removed(hosts=(A,), outcome=record(a=HostState.DONE, b=HostState.EXPIRED))
        ),
    ),
    "removed unfinished without a record": (
        "C1",
        lambda: Script().enqueued().effect(A).finished(A).at(101.0).removed(hosts=(A,)),
    ),
    "an outcome removed before its entry": (
        "C2",
        lambda: Script().enqueued().done_everywhere().happens(Removed(f"{ROOT}/{FIRST}/finished/{A}")),
    ),
    "something made below a removed entry": (
        "C3",
        lambda: (
            Script()
            .enqueued()
            .done_everywhere()
            .at(101.0)
            .removed(outcome=record(a=HostState.DONE, b=HostState.DONE))
            .happens(Created(f"{ROOT}/{FIRST}/shards"))
        ),
    ),
    "a record that says otherwise": (
        "C4",
        lambda: (
            Script()
            .enqueued()
            .done_everywhere()
            .at(101.0)
            .removed(outcome=record(a=HostState.DONE, b=HostState.EXPIRED))
        ),
    ),
    "removed twice": (
        "C4",
        lambda: (
            Script()
            .enqueued()
            .done_everywhere()
            .at(101.0)
            .removed(outcome=record(a=HostState.DONE, b=HostState.DONE))
            .happens(Removed(f"{ROOT}/{FIRST}"))
        ),
    ),
    "active without finished": (
        "S1",
        lambda: (
            Script()
            .happens(Created(f"{ROOT}/{FIRST}", entry_data()))
            .happens(Created(f"{ROOT}/{FIRST}/active"))
            .happens(Created(f"{ROOT}/{FIRST}/finished"))
        ),
    ),
}


def _acknowledge(script: Script, token: str, entry: str) -> Script:
    script.history.acknowledged.append(Acknowledged(token, entry))
    return script


@pytest.mark.parametrize("name", BAD)
def test_a_bad_history_breaks_its_promise_and_no_other_is_blamed(name: str) -> None:
    promise, make = BAD[name]
    # Most of these stop in the middle, before every host has an outcome.
    tolerated = set() if promise == "D5" else {"D5"}
    assert promises(make()) - tolerated == {promise}


def test_an_honest_unknown_may_go_with_an_effect() -> None:
    script = Script().enqueued().effect(A).finished(A, code=341, message="Outcome unknown: a began this")
    assert "D1" not in promises(script)


def test_a_claim_may_go_with_its_session() -> None:
    script = Script().enqueued().done_everywhere().happens(Created(f"{ROOT}/{FIRST}/active/{A}"), actor="a")
    script.happens(Removed(f"{ROOT}/{FIRST}/active/{A}"), by_session_end=True)
    assert promises(script) == set()


def test_the_outcome_that_counts_is_the_last_text() -> None:
    script = Script().enqueued().effect(A)
    path = f"{ROOT}/{FIRST}/finished/{B}"
    script.finished(A).happens(Created(path, b"0\n"), Changed(path, b"57\nfailed"))
    assert promises(script) == set()


def test_every_checker_has_a_bad_history() -> None:
    assert {promise for promise, _ in BAD.values()} == set(CHECKERS)


def test_a_replica_that_lacked_the_table_may_lead_its_shard_on_to_later_entries() -> None:
    def script(code: int) -> Script:
        script = Script().enqueued(runs_once_per_shard=True).enqueued(SECOND, "t2", runs_once_per_shard=True)
        script.finished(B, FIRST, code=code, message="no").effect(B, SECOND, shard="s").finished(B, SECOND)
        return script.effect(A, FIRST, shard="s").finished(A, FIRST).finished(A, SECOND)

    assert promises(script(60)) == set()
    assert promises(script(57)) == {"D3"}
