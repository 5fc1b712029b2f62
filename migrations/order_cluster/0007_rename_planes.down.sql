RENAME TABLE IF EXISTS flights.aircraft TO flights.planes ON CLUSTER order_cluster;
