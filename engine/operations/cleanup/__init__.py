"""Taking away what nobody needs any more: old queue entries, replicas and tables that are gone, parts that
servers set aside.

A plan says what would go and on which proof; acts prove it again in the transaction that acts. Kinds of
rubbish have a file each, with the argument why it is safe.
"""

from engine.operations.cleanup.abandoned import AbandonAct, abandon_performer, plan_abandon
from engine.operations.cleanup.broken_spool import SpoolAct
from engine.operations.cleanup.ddl_queue import DdlAct
from engine.operations.cleanup.detached_parts import DetachedAct
from engine.operations.cleanup.half_created import TableAct
from engine.operations.cleanup.planning import OPERATION, cleanup_performer, plan_cleanup, record_plan
from engine.operations.cleanup.replicas import Probe, ReplicaAct
from engine.operations.cleanup.settings import (
    BY_SERVERS,
    MAYBE_ONLY_COPIES,
    BrokenFilesFate,
    CleanupKind,
    CleanupSettings,
    GoneHost,
)

__all__ = [
    "BY_SERVERS",
    "MAYBE_ONLY_COPIES",
    "OPERATION",
    "AbandonAct",
    "BrokenFilesFate",
    "CleanupKind",
    "CleanupSettings",
    "DdlAct",
    "DetachedAct",
    "GoneHost",
    "Probe",
    "ReplicaAct",
    "SpoolAct",
    "TableAct",
    "abandon_performer",
    "cleanup_performer",
    "plan_abandon",
    "plan_cleanup",
    "record_plan",
]
