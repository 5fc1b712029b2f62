DROP DATABASE IF EXISTS flights ON CLUSTER order_cluster;
