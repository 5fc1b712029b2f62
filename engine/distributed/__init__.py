"""Distributed tables: which shard a row belongs to, how it gets there exactly once, how all are read.

definition      what CREATE TABLE … ENGINE = Distributed says
sharding        from a row's key to its shard; peers, replica_choice: who is asked there
inserter        rows of an INSERT, by shard: at once, or into the spool
spool_…         files that wait to be sent; sender, delivery, batches: how they go, each once
select/         SELECT: each reference becomes a subquery over the shards
"""
