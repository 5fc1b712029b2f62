-- One log per shard, on each of its replicas.
-- oncluster: entry_version=1

CREATE DATABASE IF NOT EXISTS logs;

CREATE TABLE IF NOT EXISTS logs.lines
(
    at   DateTime,
    line String
)
ENGINE = ReplicatedMergeTree('/clickhouse/tables/{log_shard}/logs/lines', '{replica}')
PARTITION BY toYYYYMM(at)
ORDER BY at;
