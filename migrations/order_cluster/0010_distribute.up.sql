-- The tables of all shards as one. A row goes to the shard that its key names.
-- oncluster: database=flights

CREATE TABLE IF NOT EXISTS flights_all AS flights
ENGINE = Distributed(order_cluster, flights, flights, cityHash64(tailnum, time_hour));

CREATE TABLE IF NOT EXISTS daily_delays_all AS daily_delays
ENGINE = Distributed(order_cluster, flights, daily_delays, cityHash64(origin, carrier, day));

CREATE TABLE IF NOT EXISTS flights_quarantine_all AS flights_quarantine
ENGINE = Distributed(order_cluster, flights, flights_quarantine, line_number);
