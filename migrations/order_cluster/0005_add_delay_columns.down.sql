ALTER TABLE flights.flights COMMENT COLUMN IF EXISTS distance 'miles';

ALTER TABLE flights.flights ON CLUSTER order_cluster
    DROP COLUMN IF EXISTS is_late,
    DROP COLUMN IF EXISTS is_cancelled;
