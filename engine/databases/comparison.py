"""At the beginning of a session: are the definitions here those that Keeper has for this replica?

Safety argument. Nobody changes definitions meanwhile (the caller sees to that), so what is read of Keeper
and of this replica belongs together. Definitions with the digest that Keeper has are those of `log_ptr`.
Others may be so because this replica's own last statement was committed and not carried out: that is done
first, once more. What differs then is recovered from (`recovery`). Only when all is as it should be does what
was put away go for good.

Source: ClickHouse's DatabaseReplicatedDDLWorker::initializeReplication.
"""

from __future__ import annotations

import logging

from engine.databases.cluster import is_there
from engine.databases.digest import digest_of
from engine.databases.paths import DatabasePaths, ReplicaName
from engine.databases.recovery import recover
from engine.databases.schema import LocalSchema
from engine.databases.settings import DatabaseSettings
from engine.ddl.entry import DDLLogEntry
from engine.ddl.text import encode_bytes
from engine.env import Env
from engine.errors import OnclusterError
from engine.keeper.base import Keeper

log = logging.getLogger(__name__)


async def compare(
    keeper: Keeper,
    env: Env,
    paths: DatabasePaths,
    me: ReplicaName,
    schema: LocalSchema,
    settings: DatabaseSettings,
    *,
    database_name: str,
) -> int:
    """The entry whose definitions are here when this returns. Raises as `recover`."""
    log_ptr = int((await keeper.get(paths.replica(me, "log_ptr"))).data)
    newest = int((await keeper.get(paths.max_log_ptr)).data)
    keep = int((await keeper.get(paths.logs_to_keep)).data)
    digest = await is_there(keeper, paths.replica(me, "digest")) or b"0"
    is_lost = not log_ptr or log_ptr + keep < newest
    if not is_lost and not settings.check_consistency:
        return log_ptr
    if not is_lost and not fits(schema, digest):
        await _redo_own(keeper, paths, me, schema, log_ptr, database_name)
        is_lost = not fits(schema, digest)
    if is_lost:
        log_ptr = await recover(
            keeper, env, paths, me, schema, settings, database_name=database_name, log_ptr=log_ptr
        )
    await schema.settle()
    return log_ptr


def fits(schema: LocalSchema, digest: bytes) -> bool:
    """Whether the definitions that are here have this digest of Keeper's."""
    return digest == str(digest_of(schema.texts())).encode()


async def _redo_own(
    keeper: Keeper,
    paths: DatabasePaths,
    me: ReplicaName,
    schema: LocalSchema,
    number: int,
    database_name: str,
) -> None:
    """This replica's own last entry may have been committed and not carried out. Not if another was begun
    since: that was behind the end of this one, and DROP once more would drop what has got the name."""
    if schema.begun() != number:
        return
    committed = await is_there(keeper, paths.entry(number, "committed"))
    data = await is_there(keeper, paths.entry(number))
    if committed != encode_bytes(str(me)) or data is None:
        return
    try:
        entry = DDLLogEntry.from_bytes(data, where=paths.entry(number))
        await schema.redo(entry.query, {s.name: s.value for s in entry.settings})
    except OnclusterError as error:
        log.warning("databases.not_redone database=%s error=%s", database_name, error)
