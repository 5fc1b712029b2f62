-- What the Spark load writes beside the flights: one row per day, airport and airline, and the raw lines that are
-- no flights, with the reason.
-- oncluster: database=flights

CREATE TABLE IF NOT EXISTS daily_delays
(
    day       Date COMMENT 'of departure, UTC',
    origin    LowCardinality(String),
    carrier   LowCardinality(String),
    flights   UInt32,
    cancelled UInt32,
    late      UInt32 COMMENT 'arrived more than 15 minutes late',
    delay_sum Int64 COMMENT 'minutes of delay at departure, over the flights that left'
)
ENGINE = ReplicatedMergeTree('/clickhouse/tables/{order_shard}/{database}/{table}', '{replica}')
PARTITION BY toYYYYMM(day)
ORDER BY (origin, carrier, day);

CREATE TABLE IF NOT EXISTS flights_quarantine
(
    job_id      String COMMENT 'the load that met the line',
    loaded_for  Date COMMENT 'first day of the month that was loaded',
    line_number UInt64,
    reason      LowCardinality(String),
    line        String CODEC(ZSTD(3))
)
ENGINE = ReplicatedMergeTree('/clickhouse/tables/{order_shard}/{database}/{table}', '{replica}')
PARTITION BY toYYYYMM(loaded_for)
ORDER BY (reason, line_number);
