"""How a cluster is: `check_health` looks, `record_health` keeps what was seen.

`ask_…` gather facts, `check_…` are functions of these facts and of the settings, one file for each family.
"""

from engine.config.health_model import HealthSettings, TableLimits
from engine.operations.health.check import SCOPE, HealthReport, check_health, record_health, report_of
from engine.operations.health.facts import ClusterFacts
from engine.operations.health.gather import Depth, gather_facts
from engine.operations.health.samples import Metric

__all__ = [
    "SCOPE",
    "ClusterFacts",
    "Depth",
    "HealthReport",
    "HealthSettings",
    "Metric",
    "TableLimits",
    "check_health",
    "gather_facts",
    "record_health",
    "report_of",
]
