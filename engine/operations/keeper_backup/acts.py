"""A restore as a plan of one act: approved before it runs, recorded, and alone on its cluster.

The act names the backup by its digest: another file under the same name is refused. Why it may be repeated is
told in `engine.operations.keeper_backup.restore`.
"""

from __future__ import annotations

from pathlib import Path

from engine.config.model import KeeperSection
from engine.errors import ConfigError
from engine.keeper.recipes import ancestors
from engine.operations.act import Act, ActResult, ActState, Danger, Plan
from engine.operations.carrying_out import Performer, lock_path
from engine.operations.keeper_backup.comparing import compare
from engine.operations.keeper_backup.facts import Progress, no_progress
from engine.operations.keeper_backup.finished import open_backup
from engine.operations.keeper_backup.live import LiveTree
from engine.operations.keeper_backup.restore import restore_tree
from engine.operations.keeper_backup.zookeeper_source import name_of, patient_keeper
from engine.operations.site import Site

RESTORE = "restore-keeper"
OPERATION = "keeper-restore"


def plan_restore(site: Site, path: Path, *, root: str) -> Plan:
    """Restore a backup below `root` of the site's Keeper. Changes nothing; checks the whole file.

    Raises Corrupt, Refused; ConfigError for a root that holds the lock under which this very plan would run:
    then the command line restores (`oncluster keeper restore`), which takes none.
    """
    backup = open_backup(path)
    if root == "/" or root in (*ancestors(lock_path(site)), lock_path(site)):
        raise ConfigError(
            f"{root} is where operations on {site.cluster} have their lock, so it is never empty.",
            hint="Restore with `oncluster keeper restore`, which needs no lock, while nobody uses Keeper.",
        )
    facts = backup.facts
    act = Act(
        kind=RESTORE,
        subject=root,
        what=f"Restore {facts.nodes - facts.ephemeral} nodes of {path.name} below {root}.",
        why=f"The backup is whole (digest {facts.digest[:12]}); the target is looked at first.",
        payload={"file": str(path.absolute()), "digest": facts.digest, "root": root},
        danger=Danger.REPAIRS,
    )
    notes = []
    if facts.ephemeral:
        notes.append(f"{facts.ephemeral} ephemeral nodes are left out: they belong to sessions.")
    if facts.changing_count:
        notes.append(
            f"{facts.changing_count} nodes changed while the backup was made; its trailer names them."
        )
    return Plan(OPERATION, site.cluster, (act,), notes=tuple(notes))


def restore_performer(site: Site, *, progress: Progress = no_progress) -> Performer:
    """Performs the act of `plan_restore`; done means that a comparison found the target equal."""

    async def perform(act: Act) -> ActResult:
        backup = open_backup(Path(act.payload["file"]))
        if backup.facts.digest != act.payload["digest"]:
            return ActResult(
                ActState.REFUSED, f"{act.payload['file']} is another backup than the planned one."
            )
        section, root = _section(site), str(act.payload["root"])
        async with patient_keeper(section, site.env) as target:
            restored = await restore_tree(
                backup, target, root=root, identity=section.identity, progress=progress
            )
            result = await compare(backup, LiveTree(target, root), progress=progress)
        if not result.is_restored:
            first = result.differences[0]
            return ActResult(
                ActState.FAILED,
                f"{result.difference_count} nodes of {name_of(section)} differ from the backup, the first is "
                f"{first.path} ({first.aspect}).",
            )
        state = ActState.DONE if restored.created or restored.raised else ActState.NOT_NEEDED
        return ActResult(
            state, f"{restored.created} made, {restored.present} were there; equal to the backup."
        )

    return perform


def _section(site: Site) -> KeeperSection:
    if site.config.zookeeper is None:
        raise ConfigError("The configuration has no <zookeeper> section.")
    return site.config.zookeeper
