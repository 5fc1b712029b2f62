-- oncluster: database=flights
DROP TABLE IF EXISTS flights_staging;
DROP TABLE IF EXISTS flights;
