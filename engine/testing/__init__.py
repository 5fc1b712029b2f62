"""Simulation, faults, checkers, local clusters: for this project's tests and for users' own."""
