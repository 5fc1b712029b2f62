"""One Keeper's tree into another Keeper, or under another prefix of the same: a backup and its restore.

It goes by way of a file, so that the copy is of one instant and an interrupted one continues: the same call
with the same file takes up where it was. Ephemeral nodes are left out; how many there were is told.

Source and target keep their sessions apart, so that they may be the same Keeper.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from engine.env import Env
from engine.errors import Refused
from engine.operations.keeper_backup.comparing import Comparison, compare
from engine.operations.keeper_backup.dump import ROUNDS, dump_tree
from engine.operations.keeper_backup.facts import BackupFacts, Progress, no_progress
from engine.operations.keeper_backup.finished import open_backup
from engine.operations.keeper_backup.live import LiveTree
from engine.operations.keeper_backup.patient import PatientKeeper
from engine.operations.keeper_backup.restore import Restored, restore_tree


@dataclass(frozen=True, slots=True)
class Copied:
    """What was copied, what was done, and what the copy is like."""

    facts: BackupFacts
    restored: Restored
    comparison: Comparison


async def copy_tree(
    source: PatientKeeper,
    target: PatientKeeper,
    by_way_of: Path,
    *,
    root: str,
    target_root: str,
    source_name: str,
    env: Env,
    target_identity: str = "",
    rounds: int = ROUNDS,
    progress: Progress = no_progress,
) -> Copied:
    """Copy what is below `root`. The file `by_way_of` stays; a finished one is used as it is.

    Raises what `dump_tree` and `restore_tree` raise; Refused for a finished file of something else.
    """
    if by_way_of.exists():
        backup = open_backup(by_way_of)
        if (backup.facts.root, backup.facts.source) != (root, source_name):
            raise Refused(
                f"{by_way_of} is a backup of {backup.facts.root} of {backup.facts.source}, not of {root} of "
                f"{source_name}.",
                hint="Give another file.",
            )
    else:
        await dump_tree(
            source, by_way_of, root=root, source_name=source_name, env=env, rounds=rounds, progress=progress
        )
        backup = open_backup(by_way_of)
    restored = await restore_tree(
        backup, target, root=target_root, identity=target_identity, progress=progress
    )
    comparison = await compare(backup, LiveTree(target, target_root), progress=progress)
    return Copied(backup.facts, restored, comparison)
