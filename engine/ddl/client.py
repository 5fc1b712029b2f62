"""Submitting statements to the queue, each token exactly once, and finding them again.

Safety argument of `submit`:

1. multi{create <tokens>/<token>, create <root>/query- (sequential), create its active, its finished}. All of
   them exist or none. A crash or a lost reply here leaves everything, or nothing; whoever tries again is told
   NodeExists by the token and attaches. The multi may be repeated blindly for that reason. The name is not
   known before: it is guessed from the number of children the queue ever had. A wrong guess names an entry
   that is not there, or one that has its directories, and refuses the multi; or one that somebody else is
   about to give its directories, which then has them, as from any worker.
2. Where the guess was refused: step 1 without active and finished. Where it was wrong or refused:
   multi{create active, create finished}, and in the same breath the entry's name into the token's data. A
   crash before it leaves an entry without directories, which every worker copes with, and a token without
   its name or with another's. It is found by its czxid: both nodes of step 1 were made by one transaction.
   `active` and `finished` are never made one after the other: workers of 18.16 die of an entry that has only
   one of them.

Never: enqueue again because an entry is not there. An entry that was cleaned up is attached to as *gone*.
Token nodes are never removed.
"""

from __future__ import annotations

import asyncio
import enum
import json
import logging
import re
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass

from engine.ddl.entry import DDLLogEntry
from engine.ddl.hang_ups import HangUps
from engine.ddl.initiator import PreparedStatement, check_token
from engine.ddl.outcome import EntryStatus
from engine.ddl.outcome_record import read_outcome_record
from engine.ddl.queue_table import QueueRow, read_queue_rows
from engine.ddl.session import SessionSource, retrying, session_source
from engine.ddl.status_reader import StatusReader
from engine.env import Env
from engine.errors import (
    BadVersion,
    Corrupt,
    KeeperAnswer,
    MultiFailed,
    NoAuth,
    NodeExists,
    NoNode,
    OnclusterError,
    Refused,
    UnknownOutcome,
)
from engine.keeper.base import Create, CreateMode, Keeper, Node, Op
from engine.keeper.recipes import SessionHolder, create_ancestors, create_if_not_exists
from engine.names import HostId, QueuePaths, entry_name, entry_number

logger = logging.getLogger(__name__)

_UUID_CLAUSE = re.compile(r"\bUUID '[0-9A-Fa-f-]{36}' ")
_LOOKUP_BATCH = 200


class SubmitOutcome(enum.StrEnum):
    ENQUEUED = "enqueued"
    ATTACHED = "attached"
    """The token had been submitted before, by anybody; nothing was enqueued."""


class _Placed(enum.Enum):
    """What the transaction that made an entry has made with it."""

    WHOLE = "the entry, its directories, and its name in the token"
    ENTRY_ONLY = "the entry"


@dataclass(frozen=True, slots=True)
class Submission:
    """Where the statement of a token stands in the queue.

    `is_gone`: it was submitted once and has been removed from the queue since; `entry` is empty if nobody
    knows any more under which name. `DDLQueueClient.status` may still know its outcome.
    """

    entry: str
    token: str
    hosts: tuple[HostId, ...]
    outcome: SubmitOutcome
    is_gone: bool = False


class DDLQueueClient:
    """One queue, for whoever submits or watches. Any number of clients may look at the same entry.

    `keeper` is one session or a holder of sessions; with a holder `watch` and `submit` survive its end.
    """

    def __init__(self, keeper: Keeper | SessionHolder | SessionSource, env: Env, paths: QueuePaths) -> None:
        self._source = session_source(keeper)
        self._env = env
        self._paths = paths
        self._reader = StatusReader(self._source, env, paths)
        self._known_replicas: set[HostId] = set()

    @property
    def paths(self) -> QueuePaths:
        return self._paths

    # --- submitting ---------------------------------------------------------------------------------------

    async def submit(self, prepared: PreparedStatement) -> Submission:
        """Put the statement into the queue unless its token has been there before.

        Raises Refused 36 when the token was used for another statement, 999 when Keeper takes no statement of
        this length; KeeperUnavailable (nothing happened) or UnknownOutcome (call again with the same token)
        when Keeper stays away.
        """
        hang_ups = HangUps(len(prepared.data))

        async def enqueue(keeper: Keeper) -> tuple[str, _Placed] | None:
            if hang_ups.are_many:
                token_path = self._paths.token(prepared.token)
                await keeper.sync(token_path)
                if await keeper.exists(token_path) is None:
                    raise hang_ups.refusal()
            return await self._enqueue(keeper, prepared, hang_ups)

        placed = await retrying(self._source, self._env, enqueue)
        if placed is None:
            return await self._attach(prepared)
        entry, state = placed
        logger.info("ddl.enqueued entry=%s token=%s hosts=%d", entry, prepared.token, len(prepared.hosts))
        await self._finish_submission(prepared.token, entry, prepared.hosts, state)
        return Submission(entry, prepared.token, prepared.hosts, SubmitOutcome.ENQUEUED)

    async def _enqueue(
        self, keeper: Keeper, prepared: PreparedStatement, hang_ups: HangUps
    ) -> tuple[str, _Placed] | None:
        """Step 1, with a guess and then without; the entry made, or None: the token is there."""
        token_path = self._paths.token(prepared.token)
        create = Create(self._paths.entry_prefix, prepared.data, CreateMode.PERSISTENT_SEQUENTIAL)
        guess = await self._next_entry(keeper)
        for _ in range(3):
            ops: list[Op] = [Create(token_path), create]
            if guess is not None:
                ops[0] = Create(token_path, _encode_token(guess, prepared.hosts))
                ops += [Create(self._paths.active(guess)), Create(self._paths.finished(guess))]
            try:
                made = str((await hang_ups.multi(keeper, ops))[1]).rpartition("/")[2]
            except MultiFailed as refusal:
                if isinstance(refusal.error, NodeExists) and refusal.index == 0:
                    return None
                if refusal.index > 1 and isinstance(refusal.error, (NodeExists, NoNode)):
                    guess = None
                    continue
                if not isinstance(refusal.error, NoNode):
                    raise
                await self._create_roots(keeper)
            else:
                return made, _Placed.WHOLE if guess == made else _Placed.ENTRY_ONLY
        raise Corrupt(f"The queue {self._paths.root} vanishes while it is being made")

    async def _next_entry(self, keeper: Keeper) -> str | None:
        """The name that the next entry will most likely get; None where there is no queue yet.

        Keeper numbers sequential children by how many children were ever made. `cversion` counts those that
        were made and those that were removed.
        """
        stat = await keeper.exists(self._paths.root)
        if stat is None:
            return None
        return entry_name((stat.cversion + stat.num_children) // 2)

    async def find(self, token: str) -> Submission | None:
        """The submission of a token; None if it was never submitted."""
        path = self._paths.token(check_token(token))

        async def look(keeper: Keeper) -> Submission | None:
            await keeper.sync(path)
            try:
                node = await keeper.get(path)
            except NoNode:
                return None
            entry, recorded_hosts = _decode_token(node.data)
            czxid = node.stat.czxid
            found = await self._read_entry(keeper, entry, czxid) if entry else None
            is_named = found is not None
            if found is None:
                entry = await self._true_name(keeper, entry, czxid)
                found = await self._read_entry(keeper, entry, czxid) if entry else None
            if found is None:
                return Submission(entry, token, recorded_hosts, SubmitOutcome.ATTACHED, is_gone=True)
            hosts = DDLLogEntry.from_bytes(found.data, where=entry).hosts
            if not is_named:
                await self._remember(keeper, token, entry, hosts)
            return Submission(entry, token, hosts, SubmitOutcome.ATTACHED)

        return await retrying(self._source, self._env, look)

    async def _read_entry(self, keeper: Keeper, entry: str, czxid: int) -> Node | None:
        """The entry that was made by this transaction; None for another of that name, or none."""
        try:
            node = await keeper.get(self._paths.entry(entry))
        except NoNode:
            return None
        return node if node.stat.czxid == czxid else None

    async def _exists(self, keeper: Keeper, entry: str) -> bool:
        return await keeper.exists(self._paths.entry(entry)) is not None

    async def _true_name(self, keeper: Keeper, recorded: str, czxid: int) -> str:
        """Under which name the transaction `czxid` made an entry, where it is not found under the recorded
        one: gone, not written down yet, or guessed wrong. Empty if nobody knows."""
        if not recorded:
            return await self._entry_of_transaction(keeper, czxid)
        record = await read_outcome_record(keeper, self._paths, recorded)
        if record is not None and record.czxid == czxid:
            return recorded
        found = await self._entry_of_transaction(keeper, czxid)
        belongs_to_another = record is not None or await self._exists(keeper, recorded)
        return found if found or belongs_to_another else recorded

    async def _attach(self, prepared: PreparedStatement) -> Submission:
        submission = await self.find(prepared.token)
        if submission is None:
            raise Corrupt(f"The token {prepared.token} was there and is not there any more")
        if not submission.is_gone:
            await self._check_same_statement(prepared, submission.entry)
            await self._finish_submission(
                prepared.token, submission.entry, submission.hosts, _Placed.ENTRY_ONLY
            )
        logger.info(
            "ddl.attached entry=%s token=%s gone=%s", submission.entry, prepared.token, submission.is_gone
        )
        return submission

    async def _check_same_statement(self, prepared: PreparedStatement, entry: str) -> None:
        async def read(keeper: Keeper) -> bytes:
            return (await keeper.get(self._paths.entry(entry))).data

        try:
            stored = DDLLogEntry.from_bytes(await retrying(self._source, self._env, read), where=entry)
        except NoNode:
            return
        if _UUID_CLAUSE.sub("", stored.query) != _UUID_CLAUSE.sub("", prepared.entry.query):
            raise Refused(
                f"The token {prepared.token} was used for another statement ({entry}).",
                hint="A token names one statement for ever; use a new one.",
            )

    async def _finish_submission(
        self, token: str, entry: str, hosts: tuple[HostId, ...], state: _Placed
    ) -> None:
        """Step 2. Whatever fails here is only logged: workers and `find` do without it."""
        try:
            keeper = await self._source.session()
        except OnclusterError as error:
            logger.warning("ddl.submission_unfinished entry=%s error=%s", entry, error)
            return
        work = [self._create_replica_dirs(keeper, hosts)]
        if state is _Placed.ENTRY_ONLY:
            work += [self._create_status_dirs(keeper, entry), self._remember(keeper, token, entry, hosts)]
        for result in await asyncio.gather(*work, return_exceptions=True):
            if isinstance(result, OnclusterError):
                logger.warning("ddl.submission_unfinished entry=%s error=%s", entry, result)
            elif isinstance(result, BaseException):
                raise result

    async def _create_status_dirs(self, keeper: Keeper, entry: str) -> None:
        try:
            await keeper.multi([Create(self._paths.active(entry)), Create(self._paths.finished(entry))])
        except MultiFailed as refusal:
            # A worker was faster, or the cleaner was: both are theirs to decide.
            if not isinstance(refusal.error, (NodeExists, NoNode)):
                raise

    async def _remember(self, keeper: Keeper, token: str, entry: str, hosts: Sequence[HostId]) -> None:
        """Write the entry's name into its token, unless somebody has done so."""
        try:
            await keeper.set(self._paths.token(token), _encode_token(entry, hosts), version=0)
        except BadVersion:
            pass

    async def _create_replica_dirs(self, keeper: Keeper, hosts: Sequence[HostId]) -> None:
        """`replicas/<host_id>` for every host of the entry, as ClickHouse of 2024 and later expects them."""
        unknown = [host for host in dict.fromkeys(hosts) if host not in self._known_replicas]
        if not unknown:
            return
        present = await keeper.exists_many([self._paths.replica(host) for host in unknown])
        missing = [host for host, stat in zip(unknown, present, strict=True) if stat is None]
        await asyncio.gather(*(self._create_replica_dir(keeper, host) for host in missing))
        self._known_replicas.update(unknown)

    async def _create_replica_dir(self, keeper: Keeper, host: HostId) -> None:
        try:
            await keeper.create(self._paths.replica(host))
        except NodeExists:
            pass
        except NoNode:
            await _create_with_ancestors(keeper, self._paths.replica(host))

    async def _create_roots(self, keeper: Keeper) -> None:
        for path in (self._paths.tokens_root, self._paths.root, self._paths.replicas_root):
            await _create_with_ancestors(keeper, path)

    async def _entry_of_transaction(self, keeper: Keeper, czxid: int) -> str:
        """The entry made by the transaction `czxid`; empty if it is not in the queue."""
        try:
            names = [
                n for n in (await keeper.children(self._paths.root)).names if entry_number(n) is not None
            ]
        except NoNode:
            return ""
        for end in range(len(names), 0, -_LOOKUP_BATCH):  # the newest first
            batch = names[max(0, end - _LOOKUP_BATCH) : end]
            stats = await keeper.exists_many([self._paths.entry(name) for name in batch])
            for name, stat in zip(batch, stats, strict=True):
                if stat is not None and stat.czxid == czxid:
                    return name
        return ""

    # --- looking ------------------------------------------------------------------------------------------

    async def status(self, entry: str) -> EntryStatus:
        """Where every host stands now, or what was recorded when the entry was removed.

        Raises SqlError 341 when the entry is gone without a record, NeverEnqueued when the queue has not come
        as far; MalformedEntry for a text nobody can read.
        """
        return await self._reader.status(entry)

    async def status_many(self, entries: Sequence[str]) -> Sequence[EntryStatus | OnclusterError]:
        """Of each entry its status, or why there is none."""
        fresh = await self._reader.up_to_date()

        async def one(entry: str) -> EntryStatus | OnclusterError:
            try:
                return await self._reader.status(entry, fresh)
            except NoAuth as error:
                return error
            except (KeeperAnswer, UnknownOutcome):
                raise
            except OnclusterError as error:
                return error

        found: list[EntryStatus | OnclusterError] = []
        for start in range(0, len(entries), _LOOKUP_BATCH):
            found += await asyncio.gather(*map(one, entries[start : start + _LOOKUP_BATCH]))
        return found

    def watch(self, entry: str) -> AsyncGenerator[EntryStatus, None]:
        """The present status, then a new one at each change, until every host has an outcome.

        Driven by watches: nothing is polled. Raises SqlError 341 when the entry is removed meanwhile.
        """
        return self._reader.watch(entry)

    async def list(self) -> tuple[str, ...]:
        """Names of all entries, oldest first."""

        async def look(keeper: Keeper) -> tuple[str, ...]:
            try:
                names = (await keeper.children(self._paths.root)).names
            except NoNode:
                return ()
            return tuple(name for name in names if entry_number(name) is not None)

        return await retrying(self._source, self._env, look)

    async def queue_rows(self) -> Sequence[QueueRow]:
        """The rows of `system.distributed_ddl_queue`."""

        async def look(keeper: Keeper) -> Sequence[QueueRow]:
            return await read_queue_rows(keeper, self._paths)

        return await retrying(self._source, self._env, look)


async def _create_with_ancestors(keeper: Keeper, path: str) -> None:
    await create_ancestors(keeper, path)
    await create_if_not_exists(keeper, path)


def _encode_token(entry: str, hosts: Sequence[HostId]) -> bytes:
    facts = {"entry": entry, "hosts": [str(host) for host in hosts]}
    return json.dumps(facts, separators=(",", ":")).encode()


def _decode_token(data: bytes) -> tuple[str, tuple[HostId, ...]]:
    """The entry's name and hosts, empty where the submitter did not come to write them."""
    if not data:
        return "", ()
    try:
        facts = json.loads(data)
        return str(facts["entry"]), tuple(HostId.parse(str(text)) for text in facts["hosts"])
    except (ValueError, KeyError, TypeError, Refused) as error:
        raise Corrupt(f"A token's data cannot be read: {data[:80]!r}") from error
