-- One row per file that was loaded, kept for half a year.
-- oncluster: database=logs
-- oncluster: allow=not-replicated reason="a lost log row is not worth a second copy"
CREATE TABLE IF NOT EXISTS load_log
(
    finished_at DateTime64(3, 'UTC') CODEC(DoubleDelta, ZSTD(1)),
    file        String,
    table       LowCardinality(String),
    rows        UInt64,
    seconds     Float32,
    outcome     Enum8('ok' = 0, 'failed' = 1, 'skipped' = 2),
    message     String
)
ENGINE = MergeTree
PARTITION BY toYYYYMM(finished_at)
ORDER BY (table, finished_at)
TTL toDateTime(finished_at) + INTERVAL 6 MONTH DELETE;

CREATE TABLE IF NOT EXISTS query_samples
(
    at          DateTime64(3, 'UTC'),
    node        LowCardinality(String),
    fingerprint UInt64,
    query       String CODEC(ZSTD(3)),
    duration_ms UInt32,
    read_rows   UInt64
)
ENGINE = MergeTree
PARTITION BY toYYYYMMDD(at)
ORDER BY (node, at)
TTL toDateTime(at) + INTERVAL 14 DAY DELETE;
