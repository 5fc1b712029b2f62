-- oncluster: entry_version=1

DROP TABLE IF EXISTS logs.lines;
DROP DATABASE IF EXISTS logs;
