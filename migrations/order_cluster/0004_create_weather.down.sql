DROP TABLE IF EXISTS flights.weather ON CLUSTER order_cluster;
