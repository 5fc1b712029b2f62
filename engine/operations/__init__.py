"""Operating a cluster: what DAGs, the command line and the cluster page call.

An operation looks (`plan_…`, which changes nothing), shows its plan, and after approval carries it out act by
act (`carrying_out`), each recorded before it happens. `site` is where an operation stands: one cluster with
its configuration, a Keeper session, its nodes and the records.
"""
