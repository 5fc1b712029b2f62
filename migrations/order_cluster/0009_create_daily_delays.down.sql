-- oncluster: database=flights
DROP TABLE IF EXISTS flights_quarantine;
DROP TABLE IF EXISTS daily_delays;
