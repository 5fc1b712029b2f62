"""What a replica's process had begun when it ended, between its effect and its record.

The definitions here are not those that Keeper has for this replica, and a comparison would move tables aside
with their rows: under a new name, or with a column that a later entry has changed again, they are in nobody's
definitions any more. What was begun is known, and the digest in Keeper proves whether the difference is its
effect and nothing else (`LocalSchema.is_effect_of`).

Safety argument. Another replica's entry was committed when it was begun: with the proof it is done, and has
only to be recorded. An own entry may be committed yet, as long as its `try` is there; that goes first, and
what was not committed then never will be: it is taken back, and a table that it has made is put aside as in a
recovery if somebody has written into it. Without a proof nothing is done here. Where memory or descriptors
run out the session begins once more: nothing may be moved aside for that.
"""

from __future__ import annotations

import logging

from engine.databases.cluster import is_there
from engine.databases.recovery import Kept, make_definitions
from engine.databases.replica import DatabaseReplica
from engine.ddl.entry import DDLLogEntry
from engine.errors import MalformedEntry, OnclusterError, ran_out
from engine.keeper.base import Keeper
from engine.keeper.recipes import try_remove

log = logging.getLogger(__name__)


async def find_unrecorded(keeper: Keeper, replica: DatabaseReplica) -> int:
    """Another replica's entry that is carried out here and not recorded; 0: there is none. The caller keeps
    others from changing definitions."""
    paths, me, schema = replica.paths, replica.me, replica.schema
    number = schema.begun()
    if number <= int((await keeper.get(paths.replica(me, "log_ptr"))).data):
        return 0
    data = await is_there(keeper, paths.entry(number))
    if data is None:
        return 0
    try:
        entry = DDLLogEntry.from_bytes(data, where=paths.entry(number))
    except MalformedEntry:
        return 0
    is_own = str(entry.initiator) == str(me)
    if is_own:
        await try_remove(keeper, paths.entry(number, "try"))
    committed = await is_there(keeper, paths.entry(number, "committed"))
    digest = await is_there(keeper, paths.replica(me, "digest")) or b"0"
    if (committed is None) != is_own or not schema.is_effect_of(number, entry.query, int(digest)):
        return 0
    if not is_own:
        log.warning("databases.unrecorded database=%s entry=%d", replica.name, number)
        return number
    log.warning("databases.taken_back database=%s entry=%d", replica.name, number)
    before = schema.before_create(entry.query)
    try:
        if before is None:
            await schema.take_back(entry.query)
        else:
            await make_definitions(replica, before, number, Kept.ROWS)
    except OnclusterError as error:
        if ran_out(error):
            raise
        log.error("databases.not_taken_back database=%s error=%s", replica.name, error)
    return 0
