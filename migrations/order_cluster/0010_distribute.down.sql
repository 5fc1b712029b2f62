-- oncluster: database=flights
DROP TABLE IF EXISTS flights_quarantine_all;
DROP TABLE IF EXISTS daily_delays_all;
DROP TABLE IF EXISTS flights_all;
