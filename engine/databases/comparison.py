"""At the beginning of a session: are the definitions here those that Keeper has for this replica?

Safety argument. Nobody changes definitions meanwhile (the caller sees to that), so what is read of Keeper
and of this replica belongs together, but for replicated tables, which follow a log of their own and may be
ahead. Definitions with the digest that Keeper has are those of `log_ptr`, also if such tables were altered
since this process saw them, or since the digest was written.
Others may be so because this replica's own last statement was committed and not carried out: that is done
first, once more. What differs then is recovered from (`recovery`). Only when all is as it should be does what
was put away go for good.

Source: ClickHouse's DatabaseReplicatedDDLWorker::initializeReplication.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from engine.databases.cluster import is_there
from engine.databases.digest import may_be_digest_of
from engine.databases.recovery import recover
from engine.databases.replica import DatabaseReplica
from engine.databases.schema import LocalSchema
from engine.ddl.entry import DDLLogEntry
from engine.ddl.text import encode_bytes
from engine.errors import OnclusterError, ran_out
from engine.keeper.base import Keeper

log = logging.getLogger(__name__)


async def compare(keeper: Keeper, replica: DatabaseReplica, known: Mapping[str, str]) -> int:
    """The entry whose definitions are here when this returns. `known` were here at some time (`fits`). Raises
    as `recover`."""
    paths, me, schema = replica.paths, replica.me, replica.schema
    log_ptr = int((await keeper.get(paths.replica(me, "log_ptr"))).data)
    newest = int((await keeper.get(paths.max_log_ptr)).data)
    keep = int((await keeper.get(paths.logs_to_keep)).data)
    digest = await is_there(keeper, paths.replica(me, "digest")) or b"0"
    is_lost = not log_ptr or log_ptr + keep < newest
    if not is_lost and not replica.settings.check_consistency:
        return log_ptr
    if not is_lost and not fits(schema, digest, known):
        await _redo_own(keeper, replica, log_ptr)
        is_lost = not fits(schema, digest, known)
    if is_lost:
        log_ptr = await recover(keeper, replica, log_ptr=log_ptr)
    await schema.settle()
    return log_ptr


def fits(schema: LocalSchema, digest: bytes, known: Mapping[str, str]) -> bool:
    """Whether the definitions that are here have this digest of Keeper's, or had it (`known`), and nothing
    but replicated tables were altered since, by their own replication."""
    texts, others = schema.texts(), schema.other_hashes()
    if may_be_digest_of(int(digest), texts, others):
        return True
    if texts.keys() != known.keys() or not may_be_digest_of(int(digest), known, others):
        return False
    return all(schema.replicates(text) for name, text in texts.items() if text != known[name])


async def _redo_own(keeper: Keeper, replica: DatabaseReplica, number: int) -> None:
    """This replica's own last entry may have been committed and not carried out. Not if another was begun
    since: that was behind the end of this one, and DROP once more would drop what has got the name."""
    paths, schema = replica.paths, replica.schema
    if schema.begun() != number:
        return
    committed = await is_there(keeper, paths.entry(number, "committed"))
    data = await is_there(keeper, paths.entry(number))
    if committed != encode_bytes(str(replica.me)) or data is None:
        return
    try:
        entry = DDLLogEntry.from_bytes(data, where=paths.entry(number))
        await schema.redo(entry.query, {s.name: s.value for s in entry.settings})
    except OnclusterError as error:
        if ran_out(error):
            raise
        log.warning("databases.not_redone database=%s error=%s", replica.name, error)
