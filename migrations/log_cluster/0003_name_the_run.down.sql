ALTER TABLE logs.query_samples DROP INDEX IF EXISTS duration_minmax;

ALTER TABLE logs.load_log DROP COLUMN IF EXISTS run_id;
