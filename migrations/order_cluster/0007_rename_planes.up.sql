-- "planes" was too narrow: the registry has helicopters and balloons, too.
RENAME TABLE IF EXISTS flights.planes TO flights.aircraft ON CLUSTER order_cluster;
