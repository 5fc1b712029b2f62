"""Distributed tables: which shard a row belongs to, how it gets there exactly once, how all are read."""
