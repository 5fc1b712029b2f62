-- oncluster: database=flights

ALTER TABLE daily_delays_all
    DROP COLUMN IF EXISTS seats,
    DROP COLUMN IF EXISTS in_rain;

ALTER TABLE daily_delays
    DROP COLUMN IF EXISTS seats,
    DROP COLUMN IF EXISTS in_rain;

ALTER TABLE flights_all
    DROP COLUMN IF EXISTS airline,
    DROP COLUMN IF EXISTS dest_name,
    DROP COLUMN IF EXISTS plane_year,
    DROP COLUMN IF EXISTS plane_model,
    DROP COLUMN IF EXISTS seats,
    DROP COLUMN IF EXISTS temp,
    DROP COLUMN IF EXISTS wind_speed,
    DROP COLUMN IF EXISTS precip,
    DROP COLUMN IF EXISTS visib;

ALTER TABLE flights
    DROP COLUMN IF EXISTS airline,
    DROP COLUMN IF EXISTS dest_name,
    DROP COLUMN IF EXISTS plane_year,
    DROP COLUMN IF EXISTS plane_model,
    DROP COLUMN IF EXISTS seats,
    DROP COLUMN IF EXISTS temp,
    DROP COLUMN IF EXISTS wind_speed,
    DROP COLUMN IF EXISTS precip,
    DROP COLUMN IF EXISTS visib;
