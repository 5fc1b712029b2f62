"""Schema drift: where hosts of a cluster differ, why, and what sets it right.

normalise   a definition in comparable parts     gather   asks hosts and Keeper
compare     where they differ                    explain  which migration explains it
report      findings                             repair   a plan and its performer
"""

from engine.operations.drift.gather import look_at_schemas
from engine.operations.drift.model import Drift, DriftKind, Explanation, PartDifference, Schemas
from engine.operations.drift.repair import DriftRepair, drift_performer, plan_drift_repair
from engine.operations.drift.report import (
    SCOPE,
    DriftReport,
    check_drift,
    drift_report,
    record_drift,
)

__all__ = [
    "SCOPE",
    "Drift",
    "DriftKind",
    "DriftRepair",
    "DriftReport",
    "Explanation",
    "PartDifference",
    "Schemas",
    "check_drift",
    "drift_performer",
    "drift_report",
    "look_at_schemas",
    "plan_drift_repair",
    "record_drift",
]
