CREATE TABLE d.t{n} ON CLUSTER mixed (a Int8 COMMENT 'it''s \\ \n ü 	', `b c` String DEFAULT 'x;--y', c Array(String) DEFAULT ['a\'b'], d Decimal(10,2) MATERIALIZED 1.5) ENGINE = MergeTree ORDER BY a COMMENT 'one "sentence" /* */';

CREATE TABLE d.r{n} ON CLUSTER 'mixed' (a Int8, b Nullable(String)) ENGINE = ReplicatedMergeTree ORDER BY a SETTINGS index_granularity = 100 -- a comment;

ALTER TABLE d.r{n} ON CLUSTER mixed /* c */ ADD COLUMN z Enum8('a\'' = 1, 'b' = 2) DEFAULT 'b' AFTER a, MODIFY COLUMN b Nullable(String) CODEC(ZSTD(3));

CREATE VIEW d.v{n} ON CLUSTER mixed AS WITH x AS (SELECT 1 AS q) SELECT a, `b c`, (SELECT q FROM x) AS one FROM d.t{n} WHERE `b c` LIKE '%\_%' SETTINGS max_threads = 2;

CREATE TABLE d.e{n} ON CLUSTER mixed ENGINE = Memory EMPTY AS SELECT 1 AS a, map('k', [1, 2]) AS m;

CREATE FUNCTION f{n} ON CLUSTER mixed AS (x, y) -> x + y * 2;

DROP TABLE d.e{n} ON CLUSTER mixed NO DELAY;

DROP FUNCTION f{n} ON CLUSTER mixed;

CREATE NAMED COLLECTION nc{n} ON CLUSTER mixed AS a = 'x\'y', b = 2;

CREATE DICTIONARY d.d{n} ON CLUSTER mixed (k UInt64, v String DEFAULT 'q') PRIMARY KEY k SOURCE(CLICKHOUSE(TABLE 't{n}' DB 'd')) LAYOUT(FLAT()) LIFETIME(MIN 0 MAX 100);

CREATE MATERIALIZED VIEW d.m{n} ON CLUSTER mixed ENGINE = ReplicatedSummingMergeTree ORDER BY a AS SELECT a, count() AS c FROM d.r{n} GROUP BY a;
