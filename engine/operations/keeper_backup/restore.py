"""Making a tree again out of a backup: in its place, in another Keeper, or under another prefix.

Safety argument. Nothing that exists is changed or removed: the target is empty, or holds a part of this very
backup, which an interrupted restore has left.

1. The whole file is checked, then the target is compared with it. Nodes may be missing, versions and
   counters may be behind, ACLs may be those that step 2 gives; anything else (another value, a node that
   the backup does not have, a live session's node) and the restore is refused before it begins.
2. Nodes are made, parents first, in multis, with their values. A node whose ACL shuts us out is made with
   ours. A crash leaves a beginning of the tree, which step 1 knows again.
3. Versions and counters are raised, never above those of the backup: a value is set again to itself, a child
   is made and removed. Each multi leaves the node's value and children as they were. A crash leaves numbers
   that are too low, which step 1 takes for a beginning.
4. ACLs are set, last, because afterwards we may not be allowed to look.

After an unknown outcome (connection or session lost) what is there is looked at before anything is written
again. Ephemeral nodes are never made: their owners are other sessions. Whoever starts servers on the target
before `restored` is reported has an unfinished tree; the command says when it is whole, by comparing again.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from engine.errors import (
    Busy,
    KeeperAnswer,
    MultiFailed,
    NoAuth,
    NodeExists,
    Refused,
    Unavailable,
    UnknownOutcome,
)
from engine.keeper.base import OPEN_ACL, Acl, Create, Keeper, Node, Op, Remove, SetData, Stat
from engine.keeper.checks import request_bytes
from engine.keeper.recipes import create_ancestors
from engine.keeper.tree import digest_identity
from engine.operations.keeper_backup.comparing import Aspect, Difference, differences_of, side_by_side
from engine.operations.keeper_backup.facts import Phase, Progress, no_progress
from engine.operations.keeper_backup.finished import BackupFile
from engine.operations.keeper_backup.live import LiveTree
from engine.operations.keeper_backup.patient import PatientKeeper
from engine.operations.keeper_backup.record import NodeRecord, creations, join

_ALL = 31
_MULTI_OPS = 1000
_MULTI_BYTES = 512 << 10
_OP_OVERHEAD_BYTES = 16
_RAISES_A_UNIT = 200
_RAISER = "oncluster-raises-the-counter"
_NAMED_AT_MOST = 5

Unit = list[Op]
"""Operations that must be in one multi."""


@dataclass(frozen=True, slots=True)
class Restored:
    """What a restore did. `present` nodes were there already; `left_out` are ephemeral; `unreadable` have no
    value in the backup and were not made, nor what may have been below them."""

    created: int
    present: int
    left_out: int
    unreadable: tuple[str, ...]
    raised: int
    acls_set: int

    def to_json(self) -> dict[str, Any]:
        return {
            "created": self.created,
            "present": self.present,
            "left_out": self.left_out,
            "unreadable": list(self.unreadable),
            "raised": self.raised,
            "acls_set": self.acls_set,
        }


async def restore_tree(
    backup: BackupFile,
    target: PatientKeeper,
    *,
    root: str,
    identity: str = "",
    progress: Progress = no_progress,
) -> Restored:
    """Make the backup's tree below `root` of the target.

    `identity` (`user:password`) is the one that the target's sessions bear, empty for none. Raises Refused
    (the target is in use, or holds something else; ACLs that the backup does not know), Busy (somebody
    writes there), KeeperUnavailable: what is done stays, and the same call continues.
    """
    if backup.facts.hidden_acls:
        raise Refused(
            f"The backup does not know the ACLs of {backup.facts.hidden_acls} nodes: their digests are shown "
            "to their administrators only.",
            hint="Make the backup with the <identity> that has all permissions.",
        )
    restorer = _Restorer(backup, target, root, identity=identity, progress=progress)
    await restorer.look()
    await restorer.create_all()
    await restorer.raise_all()
    return restorer.report()


class _Restorer:
    def __init__(
        self, backup: BackupFile, target: PatientKeeper, root: str, *, identity: str, progress: Progress
    ) -> None:
        self._backup = backup
        self._target = target
        self._root = root
        self._progress = progress
        self._ours = digest_identity(identity.encode()) if identity else ("world", "anyone")
        self._unreadable: list[str] = []
        self._sent = 0
        self._present = self._wanted = self._left_out = self._raised = self._acls_set = 0

    def report(self) -> Restored:
        return Restored(
            self._wanted - self._present,
            self._present,
            self._left_out,
            tuple(self._unreadable),
            self._raised,
            self._acls_set,
        )

    # --- step 1 -------------------------------------------------------------------------------------------

    async def look(self) -> None:
        """Refuse a target that holds anything but a beginning of this backup."""
        if await self._target.ask(self._is_there):
            await self._compare_with_what_is_there()
        elif self._root != "/":
            deadline_s = self._target.deadline_s()
            while True:
                keeper = await self._target.session()
                try:
                    await create_ancestors(keeper, self._root)
                    return
                except (UnknownOutcome, Unavailable) as error:
                    await self._target.pause_after(error, deadline_s=deadline_s)

    async def _is_there(self, keeper: Keeper) -> bool:
        return await keeper.exists(self._root) is not None

    async def _compare_with_what_is_there(self) -> None:
        live = LiveTree(self._target, self._root, tick=lambda done: self._progress(Phase.LOOKING, done, 0))
        foreign: list[Difference] = []
        async for path, wanted, there in side_by_side(self._restorable(), live.records()):
            if there is None:
                continue
            if wanted is not None and there.data is not None:
                self._present += 1
            foreign += self._what_is_foreign(path, wanted, there)
            if len(foreign) >= _NAMED_AT_MOST:
                break
        if foreign:
            named = "; ".join(f"{join(self._root, d.path)} ({d.aspect})" for d in foreign)
            raise Refused(
                f"The target {self._root} holds something else than a beginning of this backup: {named}.",
                hint="Restore under another prefix, or into an empty tree; nothing was changed.",
            )

    def _what_is_foreign(
        self, path: str, wanted: NodeRecord | None, there: NodeRecord
    ) -> Iterable[Difference]:
        if path == "/" and wanted is not None and not there.data and not there.stat.version:
            return  # the prefix, made empty beforehand
        for difference in differences_of(path, wanted, there):
            match difference.aspect:
                case Aspect.MISSING | Aspect.COUNTER_BEHIND:
                    pass
                case Aspect.COUNTER_AHEAD | Aspect.VERSION if path == "/":
                    pass  # whoever made room here made, filled and removed nodes
                case Aspect.VERSION if wanted is not None and there.stat.version <= wanted.stat.version:
                    pass
                case Aspect.ACL if self._is_ours(there.acl):
                    pass
                case Aspect.UNREADABLE if wanted is not None and not self._admits_us(wanted.acl):
                    pass  # step 4 has been here
                case _:
                    yield difference

    async def _restorable(self) -> AsyncIterator[NodeRecord]:
        async for record in self._backup.records():
            if record.data is not None and not record.is_ephemeral:
                yield record

    # --- step 2 -------------------------------------------------------------------------------------------

    async def create_all(self) -> None:
        done = 0
        must_look = self._present > 0 or self._root == "/"
        for batch in self._backup.batches():
            self._left_out += sum(record.is_ephemeral for record in batch)
            self._unreadable += [record.path for record in batch if record.data is None]
            wanted = [record for record in batch if record.data is not None and not record.is_ephemeral]
            self._wanted += len(wanted)
            await self._until_done(partial(self._create, wanted), must_look=must_look)
            done += len(batch)
            self._progress(Phase.CREATING, done, self._backup.facts.nodes)

    async def _until_done(self, attempt: Callable[..., Awaitable[None]], *, must_look: bool) -> None:
        """After an unknown outcome, and after an answer that contradicts the first look, look again."""
        deadline_s = self._target.deadline_s()
        sent_before = self._sent
        has_been_told = is_again = False
        while True:
            keeper = await self._target.session()
            try:
                if is_again:  # what got no answer has been done behind this, or never will be
                    await keeper.sync(self._root)
                await attempt(keeper, must_look=must_look)
                return
            except (UnknownOutcome, Unavailable) as error:
                if self._sent > sent_before:  # patience is for a Keeper that does nothing
                    sent_before, deadline_s = self._sent, self._target.deadline_s()
                await self._target.pause_after(error, deadline_s=deadline_s)
            except MultiFailed as failed:
                if has_been_told or not isinstance(failed.error, NodeExists):
                    raise _disturbed(failed) from failed
                has_been_told = True
            must_look = is_again = True

    async def _create(self, wanted: Sequence[NodeRecord], keeper: Keeper, *, must_look: bool) -> None:
        missing = list(wanted)
        if must_look:
            there = await keeper.get_many([join(self._root, record.path) for record in wanted])
            missing = []
            for record, node in zip(wanted, there, strict=True):
                if not isinstance(node, Node | NoAuth):
                    missing.append(record)
                elif isinstance(node, Node) and node.data != record.data:
                    await self._fill_root(keeper, record, node)
        async for _ in self._send(keeper, ([self._creation(record)] for record in missing)):
            pass

    async def _fill_root(self, keeper: Keeper, record: NodeRecord, node: Node) -> None:
        """The root is often there, and empty."""
        place = join(self._root, record.path)
        if record.path != "/" or node.data:
            raise Busy(
                f"Somebody else writes below {self._root}: {place} has another value.", holder="somebody else"
            )
        await keeper.set(place, record.data or b"", version=node.stat.version)

    def _creation(self, record: NodeRecord) -> Create:
        # By identity: this very tuple stands for "what the session gives by default".
        acl = record.acl if self._admits_us(record.acl) else OPEN_ACL
        return Create(join(self._root, record.path), record.data or b"", acl=acl)

    def _admits_us(self, acl: Sequence[Acl]) -> bool:
        return any(entry.perms == _ALL and (entry.scheme, entry.id) == self._ours for entry in acl)

    def _is_ours(self, acl: Sequence[Acl]) -> bool:
        return len(acl) == 1 and self._admits_us(acl)

    # --- steps 3 and 4 ------------------------------------------------------------------------------------

    async def raise_all(self) -> None:
        for batch in self._backup.batches():
            wanted = [record for record in batch if record.data is not None and not record.is_ephemeral]
            await self._until_done(partial(self._raise, wanted), must_look=True)
            self._progress(Phase.RAISING, self._raised, 0)
        for batch in self._backup.batches():
            closing = [r for r in batch if r.data is not None and not r.is_ephemeral]
            closing = [r for r in closing if not self._admits_us(r.acl)]
            if closing:
                await self._until_done(partial(self._close, closing), must_look=True)

    async def _raise(self, wanted: Sequence[NodeRecord], keeper: Keeper, *, must_look: bool) -> None:
        del must_look  # always
        rising = [record for record in wanted if record.stat.version or record.creations]
        stats = await _stats(keeper, [join(self._root, record.path) for record in rising])
        units = (
            unit
            for record, stat in zip(rising, stats, strict=True)
            if stat is not None
            for unit in self._raises(record, stat)
        )
        async for count in self._send(keeper, units):
            self._raised += count
            self._progress(Phase.RAISING, self._raised, 0)

    def _raises(self, record: NodeRecord, stat: Stat) -> Iterator[Unit]:
        place, data = join(self._root, record.path), record.data or b""
        left = record.stat.version - stat.version
        while left > 0:
            count = min(left, _RAISES_A_UNIT)
            yield [*(SetData(place, b"") for _ in range(count - 1)), SetData(place, data)]
            left -= count
        raiser = join(place, "/" + _RAISER)
        for _ in range(record.creations - creations(stat)):
            yield [Create(raiser), Remove(raiser)]

    async def _send(self, keeper: Keeper, units: Iterable[Unit]) -> AsyncIterator[int]:
        """Whole units in multis, one multi after the other; yields how many operations each had."""
        for ops in _packed(units):
            await keeper.multi(ops)
            self._sent += len(ops)
            yield len(ops)

    async def _close(self, closing: Sequence[NodeRecord], keeper: Keeper, *, must_look: bool) -> None:
        del must_look  # always
        for record in closing:
            place = join(self._root, record.path)
            try:
                if set(await keeper.get_acl(place)) == set(record.acl):
                    continue
                await keeper.set_acl(place, record.acl)
            except NoAuth:
                continue  # it has its ACL already
            self._acls_set += 1


async def _stats(keeper: Keeper, places: Sequence[str]) -> list[Stat | None]:
    """None for what may not be looked at: it has its ACL, which comes after all else."""
    found = await keeper.get_many(places)
    return [node.stat if isinstance(node, Node) else None for node in found]


def _packed(units: Iterable[Unit]) -> Iterator[list[Op]]:
    ops: list[Op] = []
    size_bytes = 0
    for unit in units:
        unit_bytes = sum(request_bytes(op) + _OP_OVERHEAD_BYTES for op in unit)
        if ops and (len(ops) + len(unit) > _MULTI_OPS or size_bytes + unit_bytes > _MULTI_BYTES):
            yield ops
            ops, size_bytes = [], 0
        ops += unit
        size_bytes += unit_bytes
    if ops:
        yield ops


def _disturbed(failed: MultiFailed) -> Busy:
    answer: KeeperAnswer = failed.error
    return Busy(
        f"Somebody else writes where the backup is restored: {answer.message}.",
        holder="somebody else",
        hint="Stop whoever uses the target tree, then give the same command again: it continues.",
    )
