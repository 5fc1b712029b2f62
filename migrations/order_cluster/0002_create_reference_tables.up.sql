-- Small tables that every node holds in full: they are joined with, and never with a remote one.
-- oncluster: database=flights

CREATE TABLE IF NOT EXISTS airlines
(
    carrier LowCardinality(String) COMMENT 'two-letter code',
    name    String
)
ENGINE = ReplicatedMergeTree('/clickhouse/tables/{order_shard}/{database}/{table}', '{replica}')
ORDER BY carrier;

CREATE TABLE IF NOT EXISTS airports
(
    faa   LowCardinality(String) COMMENT 'three-letter code',
    name  String,
    lat   Float64,
    lon   Float64,
    alt   Int32 COMMENT 'feet',
    tz    Int8 COMMENT 'hours from GMT',
    dst   LowCardinality(String),
    tzone LowCardinality(String)
)
ENGINE = ReplicatedMergeTree('/clickhouse/tables/{order_shard}/{database}/{table}', '{replica}')
ORDER BY faa;

CREATE TABLE IF NOT EXISTS planes
(
    tailnum      String,
    year         Nullable(UInt16),
    type         LowCardinality(String),
    manufacturer LowCardinality(String),
    model        LowCardinality(String),
    engines      UInt8,
    seats        UInt16,
    speed        Nullable(UInt16) COMMENT 'miles per hour',
    engine       LowCardinality(String)
)
ENGINE = ReplicatedMergeTree('/clickhouse/tables/{order_shard}/{database}/{table}', '{replica}')
ORDER BY tailnum;
