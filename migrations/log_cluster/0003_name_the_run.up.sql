-- Which run of which DAG loaded a file; and the slowest queries are looked for by duration.
ALTER TABLE logs.load_log ADD COLUMN IF NOT EXISTS run_id String DEFAULT '' AFTER finished_at;

ALTER TABLE logs.query_samples
    ADD INDEX IF NOT EXISTS duration_minmax duration_ms TYPE minmax GRANULARITY 1;
