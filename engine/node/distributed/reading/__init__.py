"""Statements that read Distributed tables. `selects` puts the rest together."""
