"""Reads and writes of one session over one connection, each at one instant of etcd.

**A read** is one read-only transaction: linearizable, all of it of one revision. With it comes the session's
own key (no key: the session is over) and the revision of the last write of anybody, up to which watches have
to be told before the result is given out.

**A write** runs on what was read before or is remembered (`overlay`), and is one transaction that compares
what the outcome depends on (`plan`). When a comparison fails nothing was done; the same answer brings what is
there now, and the write is prepared anew. An error, too, is an answer about the tree: it is given out only if
everything it depends on was read at one revision, never on what is remembered.

Every write compares the session's key with the revision at which this connection wrote it. So after the end
of the session nothing of it can be written any more, and nothing of an earlier connection that was still
under way once a later one has begun: a session's requests are executed in their order.

Writers that meet on one node wait at random before they try again, longer the more of them there have been;
who has failed often goes ahead at once. Those who only take numbers of one parent need not wait (`turns`).

When etcd's space runs out it says *full* also of what it has carried out. So it is asked again: as long as
everything holds that the write compares nothing was done, for each write changes some of it. Else its outcome
is unknown.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from engine.env import Env
from engine.errors import BadArguments, ConnectionLoss, KeeperAnswer, NoAuth
from engine.keeper.base import OpResult
from engine.keeper.etcd import messages
from engine.keeper.etcd.changes import pack_changes
from engine.keeper.etcd.channel import EtcdChannel, EtcdRefuses, LinkLost
from engine.keeper.etcd.layout import Layout
from engine.keeper.etcd.overlay import (
    NotRead,
    Overlay,
    PendingResult,
    PendingStat,
    Request,
    Touched,
)
from engine.keeper.etcd.plan import Guard, Plan, TooLarge, parent_of
from engine.keeper.etcd.record import Family, read_family
from engine.keeper.etcd.turns import Crowd, InTurn, Turn, in_turn, later, number_giver
from engine.keeper.etcd.writing import Writing
from engine.keeper.tree import Caller

_REMEMBERED = 2000
_REMEMBERED_BYTES = 4096
_PATIENT_TRIES = 8
"""So often a writer waits before it tries again."""
_BUSY_PAUSE_S = 0.05
MAKE_ROOM = "compact and defragment it, then disarm its alarm"


class SessionOver(Exception):
    """etcd knows the session no longer."""


class EtcdFull(BadArguments):
    """Nothing was done, and nothing that writes will be before somebody makes room."""


@dataclass(frozen=True, slots=True)
class Written:
    """What a write came to. `event_revision`: watches are to be told up to there first. `error` is the tree's
    answer in place of results; ConnectionLoss: nobody knows whether it was carried out."""

    results: list[OpResult]
    event_revision: int
    error: KeeperAnswer | ConnectionLoss | None = None


@dataclass(frozen=True, slots=True)
class Answers:
    """What a read came to: the keys of each range, as of `revision`."""

    ranges: list[Sequence[Any]]
    revision: int
    event_revision: int


class Remembered:
    """What was last seen of nodes; a place to begin, never an answer."""

    def __init__(self) -> None:
        self._families: OrderedDict[str, Family] = OrderedDict()

    def get(self, path: str) -> Family | None:
        return self._families.get(path)

    def keep(self, families: Iterable[tuple[str, Family]]) -> None:
        for path, family in families:
            if family.record is None or len(family.record.data) > _REMEMBERED_BYTES:
                self._families.pop(path, None)
            else:
                self._families[path] = family
                self._families.move_to_end(path)
        while len(self._families) > _REMEMBERED:
            self._families.popitem(last=False)


@dataclass(frozen=True, slots=True)
class Alone:
    """One transaction for one turn, as most are."""

    request: Any
    turns: tuple[Turn]

    @property
    def premises(self) -> list[Any]:
        """Comparisons that do not hold any more once it was carried out."""
        return list(self.request.compare)

    def outcome(self, answer: Any) -> tuple[Turn | None, Any]:
        return self.turns[0] if answer.succeeded else None, answer.responses


class Store:
    """Of one session over one connection, whose key was written at revision `epoch`.

    Methods raise LinkLost, SessionOver.
    """

    def __init__(
        self,
        channel: EtcdChannel,
        layout: Layout,
        env: Env,
        *,
        session_id: int,
        epoch: int,
        max_txn_ops: int,
        remembered: Remembered,
    ) -> None:
        self._channel = channel
        self._layout = layout
        self._env = env
        self._key = layout.session(session_id)
        self._epoch = epoch
        self._max_ops = max_txn_ops
        self._remembered = remembered
        self._crowd = 0.0
        self._number_crowd = Crowd()
        self.retries = 0
        """How often a write was prepared anew because somebody else came first."""

    @property
    def reads_at_once(self) -> int:
        """So many ranges fit into one `read`."""
        return self._max_ops - 2

    # --- reading ------------------------------------------------------------------------------------------

    async def read(self, ranges: Sequence[Any]) -> Answers:
        """At most `reads_at_once` ranges, of one instant."""
        request = messages.TxnRequest(success=[*self._guard_reads(), *ranges])
        answer = await self._call(request)
        event_revision = self._look_at_guard(answer.responses)
        found = [each.response_range.kvs for each in answer.responses[2:]]
        return Answers(found, answer.header.revision, event_revision)

    async def read_families(self, paths: Collection[str]) -> tuple[dict[str, Family], int]:
        """Any number of nodes of one instant, and the revision of the last write before."""
        wanted = [path for path in paths if "\0" not in path]
        families: dict[str, Family] = {}
        revision = event_revision = 0
        for start in range(0, max(len(wanted), 1), self.reads_at_once):
            part = wanted[start : start + self.reads_at_once]
            answers = await self.read([self._layout.family_op(path, revision=revision) for path in part])
            if not revision:
                revision, event_revision = answers.revision, answers.event_revision
            for path, kvs in zip(part, answers.ranges, strict=True):
                families[path] = read_family(kvs, self._layout.node(path), revision)
        self._remembered.keep(families.items())
        return families, event_revision

    def _guard_reads(self) -> list[Any]:
        return [messages.range_op(self._key), messages.range_op(self._layout.event, keys_only=True)]

    def _look_at_guard(self, responses: Sequence[Any]) -> int:
        """The revision of the last write. Raises SessionOver, LinkLost."""
        own, event = responses[0].response_range.kvs, responses[1].response_range.kvs
        if not own:
            raise SessionOver
        if own[0].mod_revision != self._epoch:
            raise LinkLost("the session goes on over another connection")
        return event[0].mod_revision if event else 0

    # --- writing ------------------------------------------------------------------------------------------

    async def write(
        self, requests: Sequence[Request], caller: Callable[[], Caller], *, is_multi: bool = False
    ) -> Written:
        """Carry the requests out as one. `caller` is asked for the time of each attempt."""
        writing = Writing(requests, caller, is_multi)
        writing.must_read = len(writing.paths) > self._max_ops // 4 or bool(writing.ending)
        if not writing.must_read:
            known = ((path, self._remembered.get(path)) for path in writing.paths)
            writing.families = {path: family for path, family in known if family is not None}
        while (written := await self._attempt(writing)) is None:
            pass
        return written

    async def _attempt(self, writing: Writing) -> Written | None:
        """None: nothing was done, and `writing` says what the next attempt begins with."""
        if writing.must_read:
            writing.families, writing.event_revision = await self.read_families(writing.paths)
            writing.must_read = False
        overlay = Overlay(writing.families, writing.caller())
        try:
            results = overlay.run(writing.requests, is_multi=writing.is_multi)
        except NotRead:
            writing.read_first(overlay.nodes)
            return None
        except KeeperAnswer as error:
            if writing.is_of_one_instant and not overlay.assumed:
                return Written([], writing.event_revision, error)
            writing.read_first(overlay.nodes)
            return None
        if overlay.assumed:
            writing.event_revision = -1
        if not (overlay.changes or overlay.ephemerals or writing.ending or _writes(overlay)):
            if writing.is_of_one_instant:
                return Written([_settled(each) for each in results], writing.event_revision)
            writing.read_first(overlay.nodes)
            return None
        giver = number_giver(overlay)
        try:
            prepared = self._prepared(writing, overlay, results, giver)
        except TooLarge:
            writing.read_first([*overlay.nodes, *map(parent_of, overlay.nodes)])
            return None
        except BadArguments as error:
            return Written([], max(writing.event_revision, 0), error)
        return await self._sent(writing, overlay, giver, prepared)

    def _prepared(
        self, writing: Writing, overlay: Overlay, results: list[PendingResult], giver: Touched | None
    ) -> InTurn | Alone:
        """Raises TooLarge, BadArguments."""
        guard, extra = self._guard(overlay, writing.event_revision, writing.ending)
        in_turn = None if giver is None else self._in_turn(writing, overlay, giver, guard)
        return in_turn or self._alone(overlay, results, guard, extra)

    async def _sent(
        self, writing: Writing, overlay: Overlay, giver: Touched | None, prepared: InTurn | Alone
    ) -> Written | None:
        began_s = self._env.monotonic_s()
        try:
            answer = await self._call(prepared.request)
        except EtcdRefuses as refused:
            error = as_answer(refused, writing.requests[0].path)
            if refused.is_full:
                return await self._refused_as_full(prepared, error)
            return Written([], max(writing.event_revision, 0), error)
        turn, responses = prepared.outcome(answer)
        revision = answer.header.revision
        if turn is not None:
            if giver is not None:
                self._number_crowd.met(turn.others)
            self._crowd += (writing.tries - self._crowd) / 8
            self._remembered.keep(turn.plan.families_after(revision).items())
            return Written(self._settle(turn.results, responses, revision), revision)
        writing.tries += 1
        self.retries += 1
        writing.event_revision = self._look_at_guard(responses)
        self._take_what_is_there(writing, overlay, giver, responses[2:], revision)
        if giver is None:
            await self._give_way(writing.tries, self._env.monotonic_s() - began_s)
        return None

    async def _refused_as_full(self, prepared: InTurn | Alone, error: KeeperAnswer) -> Written:
        reads = self._guard_reads()
        answer = await self._call(
            messages.TxnRequest(compare=prepared.premises, success=reads, failure=reads)
        )
        event_revision = self._look_at_guard(answer.responses)
        if answer.succeeded:
            return Written([], event_revision, error)
        return Written([], event_revision, ConnectionLoss(f"Nobody knows whether it was done: {error}"))

    def _take_what_is_there(
        self,
        writing: Writing,
        overlay: Overlay,
        giver: Touched | None,
        fresh: Sequence[Any],
        revision: int,
    ) -> None:
        """Of the answer to a transaction that was not done: `fresh` are the nodes, if so many fit into it."""
        writing.paths |= dict.fromkeys(overlay.nodes)
        if not fresh:
            writing.must_read = True
            return
        writing.families = {
            path: read_family(each.response_range.kvs, self._layout.node(path), revision)
            for path, each in zip(overlay.nodes, fresh, strict=True)
        }
        self._remembered.keep(writing.families.items())
        if giver is not None:
            made = writing.families[giver.path].num_created - giver.before.num_created
            self._number_crowd.met(max(1, made))

    async def _give_way(self, tries: int, took_s: float) -> None:
        if tries < _PATIENT_TRIES and self._crowd + tries > 1:
            await self._env.sleep(took_s * self._env.rng.uniform(0, min(self._crowd + 1, 8)))

    def _in_turn(self, writing: Writing, overlay: Overlay, giver: Touched, guard: Guard) -> InTurn | None:
        expected = self._number_crowd.expected(is_sure=writing.tries > 0)
        if len(expected) == 1:
            return None
        made = later(overlay, giver, writing.requests, is_multi=writing.is_multi, expected=expected)
        turns = (self._turn(other, found, giver.path, others) for others, other, found in made)
        return in_turn(turns, guard, self._max_ops)

    def _alone(
        self, overlay: Overlay, results: list[PendingResult], guard: Guard, extra: Sequence[Any]
    ) -> Alone:
        """Raises TooLarge, BadArguments."""
        turn = self._turn(overlay, results)
        return Alone(turn.plan.request(guard, turn.event, results, extra), (turn,))

    def _turn(
        self, overlay: Overlay, results: list[PendingResult], number_giver: str = "", others: int = 0
    ) -> Turn:
        plan = Plan(self._layout, overlay, self._max_ops, number_giver=number_giver)
        return Turn(plan, results, pack_changes(overlay.changes, overlay.caller.now_ms), others)

    def _guard(self, overlay: Overlay, event_revision: int, ending: Sequence[int]) -> tuple[Guard, list[Any]]:
        """What has to hold besides, and operations to be added."""
        reads: list[Any] = self._guard_reads()
        if len(overlay.nodes) <= self._max_ops // 2 - len(reads):
            reads += [self._layout.family_op(path) for path in overlay.nodes]
        compares = [messages.compare_mod(self._key, self._epoch)]
        extra: list[Any] = []
        for session_id in ending:
            key = self._layout.session(session_id)
            if key == self._key:
                extra.append(messages.delete_op(key))
            else:
                compares.append(messages.compare_mod(key, 0))  # it has ended, and nothing of it can be added
        return Guard(tuple(compares), tuple(reads), event_revision), extra

    def _settle(self, results: Sequence[object], responses: Iterable[Any], revision: int) -> list[OpResult]:
        reads = _flat(responses)
        settled: list[OpResult] = []
        for result in results:
            if isinstance(result, PendingStat):
                kvs = next(reads).response_range.kvs
                before = read_family(kvs, self._layout.node(result.path), revision)
                settled.append(result.resolve(revision, before))
            else:
                settled.append(result)  # type: ignore[arg-type]
        return settled

    async def _call(self, request: Any) -> Any:
        while True:
            try:
                return await self._channel.call(messages.TXN, request)
            except EtcdRefuses as refused:
                if not refused.is_busy:
                    raise
            await self._env.sleep(_BUSY_PAUSE_S * self._env.rng.uniform(0.5, 1.5))


def _writes(overlay: Overlay) -> bool:
    return any(node.is_written for node in overlay.nodes.values())


def _settled(result: object) -> OpResult:
    assert result is None  # of a check; everything else writes
    return None


def _flat(responses: Iterable[Any]) -> Iterator[Any]:
    """The answers of the operations in their order, whether folded or not."""
    for each in responses:
        if each.HasField("response_txn"):
            yield from _flat(each.response_txn.responses)
        else:
            yield each


def as_answer(refused: EtcdRefuses, path: str) -> KeeperAnswer:
    """etcd's no to a request of the session, in the words of the tree."""
    if refused.is_full:
        return EtcdFull(path, f"etcd is full ({refused.text}): {MAKE_ROOM}")
    if "permission denied" in refused.text:
        return NoAuth(path, "etcd gives its user no permission")
    if "too many operations" in refused.text:
        return BadArguments(
            path, "etcd takes fewer operations at once than <max_txn_ops> says (--max-txn-ops)"
        )
    if "too large" in refused.text:
        return BadArguments(path, "The request is longer than etcd accepts (--max-request-bytes)")
    return BadArguments(path, f"etcd refuses: {refused.text}")
