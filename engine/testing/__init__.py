"""Simulation, faults, checkers, local clusters: for this project's tests and for users' own.

simulation          a program under virtual time; its seed repeats every fault
ddl_…               the DDL queue under simulation: cluster, workload, history, and the checkers of it
replication_…       the same of replicated tables; spool_…: of what Distributed tables have to send
local_cluster       real processes: nodes and ZooKeeper on this machine
clickhouse_server   real ClickHouse servers, where there is a binary
proxy, guard, warm  cut connections; nothing left running; processes that start in no time
"""
