-- Computed when rows are read or inserted; no stored row is rewritten.
ALTER TABLE flights.flights ON CLUSTER order_cluster
    ADD COLUMN IF NOT EXISTS is_cancelled UInt8 ALIAS dep_time IS NULL AFTER dep_delay,
    ADD COLUMN IF NOT EXISTS is_late UInt8 MATERIALIZED ifNull(arr_delay, 0) > 15 AFTER arr_delay;

ALTER TABLE flights.flights
    COMMENT COLUMN IF EXISTS distance 'miles, great circle';
