-- "Where was this plane?" reads a few granules instead of the table. Rows that are there already are indexed as
-- their parts are merged.
ALTER TABLE flights.flights
    ADD INDEX IF NOT EXISTS tailnum_bloom tailnum TYPE bloom_filter(0.01) GRANULARITY 4;
