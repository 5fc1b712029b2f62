-- oncluster: database=logs
DROP TABLE IF EXISTS query_samples;
DROP TABLE IF EXISTS load_log;
