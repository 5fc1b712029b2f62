-- What the load joins to each flight, so that questions about it need no join: names, the plane, and the weather at the
-- airport in the hour of departure. Rows that are there already have empty columns until their month is loaded again.
-- oncluster: database=flights

ALTER TABLE flights
    ADD COLUMN IF NOT EXISTS airline LowCardinality(String),
    ADD COLUMN IF NOT EXISTS dest_name LowCardinality(String),
    ADD COLUMN IF NOT EXISTS plane_year Nullable(UInt16),
    ADD COLUMN IF NOT EXISTS plane_model LowCardinality(String),
    ADD COLUMN IF NOT EXISTS seats Nullable(UInt16),
    ADD COLUMN IF NOT EXISTS temp Nullable(Float32),
    ADD COLUMN IF NOT EXISTS wind_speed Nullable(Float32),
    ADD COLUMN IF NOT EXISTS precip Nullable(Float32),
    ADD COLUMN IF NOT EXISTS visib Nullable(Float32);

ALTER TABLE flights_all
    ADD COLUMN IF NOT EXISTS airline LowCardinality(String),
    ADD COLUMN IF NOT EXISTS dest_name LowCardinality(String),
    ADD COLUMN IF NOT EXISTS plane_year Nullable(UInt16),
    ADD COLUMN IF NOT EXISTS plane_model LowCardinality(String),
    ADD COLUMN IF NOT EXISTS seats Nullable(UInt16),
    ADD COLUMN IF NOT EXISTS temp Nullable(Float32),
    ADD COLUMN IF NOT EXISTS wind_speed Nullable(Float32),
    ADD COLUMN IF NOT EXISTS precip Nullable(Float32),
    ADD COLUMN IF NOT EXISTS visib Nullable(Float32);

-- Of the flights that left: seats of the planes that are known, and departures in an hour with rain or snow.
ALTER TABLE daily_delays
    ADD COLUMN IF NOT EXISTS seats UInt64,
    ADD COLUMN IF NOT EXISTS in_rain UInt32;

ALTER TABLE daily_delays_all
    ADD COLUMN IF NOT EXISTS seats UInt64,
    ADD COLUMN IF NOT EXISTS in_rain UInt32;
