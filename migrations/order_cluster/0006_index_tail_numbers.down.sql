ALTER TABLE flights.flights DROP INDEX IF EXISTS tailnum_bloom;
