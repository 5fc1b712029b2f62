"""Distributed tables on a node: their definitions, INSERT into them, and what they still have to send."""
