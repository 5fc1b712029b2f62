"""Old entries go: those that are `logs_to_keep` behind the last committed one.

Safety argument. As with the DDL queue's cleaner: `active` is removed first, alone, which fails while somebody
carries the entry out; without it nobody begins. What is left goes child by child. A replica that had not come
to an entry finds that it is too far behind, or that what it has seen before has perhaps gone
(`may_be_removed`), and compares all definitions (`recovery`).
"""

from __future__ import annotations

from engine.databases.paths import DatabasePaths
from engine.errors import KeeperAnswer, NoNode
from engine.keeper.base import Keeper
from engine.keeper.recipes import remove_recursive, try_remove
from engine.names import entry_number


async def clean_log(keeper: Keeper, paths: DatabasePaths) -> int:
    """How many have gone."""
    first = await _first_kept(keeper, paths)
    names = (await keeper.children(paths.log)).names
    numbers = [number for name in names if (number := entry_number(name)) is not None]
    removed = 0
    for number in sorted(number for number in numbers if number < first):
        answer: KeeperAnswer | None = await try_remove(keeper, paths.entry(number, "active"))
        if answer is not None and not isinstance(answer, NoNode):
            continue
        if await keeper.exists(paths.entry(number, "try")) is not None:
            continue
        removed += await remove_recursive(keeper, paths.entry(number))
    return removed


async def may_be_removed(keeper: Keeper, paths: DatabasePaths, number: int) -> bool:
    """Asked after a look at an entry, in the same session: what was missing then had been removed for a
    pointer that is no newer than this one."""
    return number < await _first_kept(keeper, paths)


async def _first_kept(keeper: Keeper, paths: DatabasePaths) -> int:
    newest = int((await keeper.get(paths.max_log_ptr)).data)
    return newest - int((await keeper.get(paths.logs_to_keep)).data)
