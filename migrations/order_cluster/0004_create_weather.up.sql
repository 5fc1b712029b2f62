-- Hourly weather at the three airports; joined to flights on (origin, time_hour).

CREATE TABLE IF NOT EXISTS flights.weather ON CLUSTER order_cluster
(
    origin     LowCardinality(String),
    year       UInt16,
    month      UInt8,
    day        UInt8,
    hour       UInt8,
    temp       Nullable(Float32) COMMENT 'degrees Fahrenheit',
    dewp       Nullable(Float32),
    humid      Nullable(Float32),
    wind_dir   Nullable(Float32),
    wind_speed Nullable(Float32) COMMENT 'miles per hour',
    wind_gust  Nullable(Float32),
    precip     Float32 COMMENT 'inches',
    pressure   Nullable(Float32) COMMENT 'millibars',
    visib      Float32 COMMENT 'miles',
    time_hour  DateTime('UTC')
)
ENGINE = ReplicatedMergeTree('/clickhouse/tables/{order_shard}/{database}/{table}', '{replica}')
ORDER BY (origin, time_hour);
