"""Replicas in a simulation: faults, users, and the checkers of R1 to R8."""
