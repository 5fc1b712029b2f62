-- Comes back empty, as it was between two loads.
-- oncluster: allow=not-replicated reason="the demo's shards hold their rows once on each replica"
CREATE TABLE IF NOT EXISTS flights.flights_staging
(
    line_number UInt64,
    line        String CODEC(ZSTD(3))
)
ENGINE = MergeTree
ORDER BY line_number;
