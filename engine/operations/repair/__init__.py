"""Healing what a health check found: `plan_repair` plans, `carry_out` with `repair_performer` acts, `prove`
compares checksums. One file for each kind of repair."""

from engine.operations.repair.kinds import Peers, Repair
from engine.operations.repair.performer import repair_performer
from engine.operations.repair.plan import OPERATION, plan_repair
from engine.operations.repair.proof import Proof, prove

__all__ = ["OPERATION", "Peers", "Proof", "Repair", "plan_repair", "prove", "repair_performer"]
