-- The facts, and the table into which raw files are read before they are checked.
-- oncluster: database=flights

CREATE TABLE IF NOT EXISTS flights
(
    year           UInt16,
    month          UInt8,
    day            UInt8,
    dep_time       Nullable(UInt16) COMMENT 'local time as HHMM; NULL: cancelled',
    sched_dep_time UInt16,
    dep_delay      Nullable(Int16) COMMENT 'minutes; negative: early',
    arr_time       Nullable(UInt16),
    sched_arr_time UInt16,
    arr_delay      Nullable(Int16),
    carrier        LowCardinality(String),
    flight         UInt16,
    tailnum        String,
    origin         LowCardinality(String),
    dest           LowCardinality(String),
    air_time       Nullable(UInt16) COMMENT 'minutes',
    distance       UInt16 COMMENT 'miles',
    hour           UInt8,
    minute         UInt8,
    time_hour      DateTime('UTC')
)
ENGINE = ReplicatedMergeTree('/clickhouse/tables/{order_shard}/{database}/{table}', '{replica}')
PARTITION BY toYYYYMM(time_hour)
ORDER BY (origin, carrier, time_hour, flight);

CREATE TABLE IF NOT EXISTS flights_staging
(
    line_number UInt64,
    line        String CODEC(ZSTD(3))
)
ENGINE = ReplicatedMergeTree('/clickhouse/tables/{order_shard}/{database}/{table}', '{replica}')
ORDER BY line_number;
