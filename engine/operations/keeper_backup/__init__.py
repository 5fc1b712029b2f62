"""Backups of Keeper's tree: dump into a file, restore, compare, copy.

record       one node, and the order of a tree          backup_file  checked, compressed chunks
patient      reading across lost sessions               finished     a finished file as a tree
live         a live tree                                dump         a tree into a file
comparing    two trees side by side                     restore      a file into a tree
facts        what a backup says about itself            copying      one Keeper into another
"""

from engine.operations.keeper_backup.acts import plan_restore, restore_performer
from engine.operations.keeper_backup.comparing import Aspect, Comparison, Difference, Ephemerals, compare
from engine.operations.keeper_backup.copying import Copied, copy_tree
from engine.operations.keeper_backup.dump import dump_tree
from engine.operations.keeper_backup.facts import BackupFacts, Phase, Progress, no_progress
from engine.operations.keeper_backup.finished import BackupFile, open_backup
from engine.operations.keeper_backup.keeping import (
    backup_name,
    backups_in,
    label_of,
    prune_backups,
    unfinished_in,
)
from engine.operations.keeper_backup.live import LiveTree
from engine.operations.keeper_backup.patient import PatientKeeper
from engine.operations.keeper_backup.restore import Restored, restore_tree
from engine.operations.keeper_backup.zookeeper_source import name_of, patient_keeper

__all__ = [
    "Aspect",
    "BackupFacts",
    "BackupFile",
    "Comparison",
    "Copied",
    "Difference",
    "Ephemerals",
    "LiveTree",
    "PatientKeeper",
    "Phase",
    "Progress",
    "Restored",
    "backup_name",
    "backups_in",
    "compare",
    "copy_tree",
    "dump_tree",
    "label_of",
    "name_of",
    "no_progress",
    "open_backup",
    "patient_keeper",
    "plan_restore",
    "prune_backups",
    "restore_performer",
    "restore_tree",
    "unfinished_in",
]
