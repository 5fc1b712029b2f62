"""A second cluster that stands by: is it equal, and how far has the switch to it come?

data     rows as counts and sums of hashes     check   what the standby lacks
switch   the steps of the one procedure        model   values
"""

from engine.operations.standby.check import check_standby
from engine.operations.standby.model import (
    DataDepth,
    DataDifference,
    SchemaDifference,
    StandbyReport,
    Step,
    StepState,
)
from engine.operations.standby.switch import switch_steps

__all__ = [
    "DataDepth",
    "DataDifference",
    "SchemaDifference",
    "StandbyReport",
    "Step",
    "StepState",
    "check_standby",
    "switch_steps",
]
