"""The DDL queue in a simulation: faults, users, and the checkers of D1 to D6."""
