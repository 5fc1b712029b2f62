-- oncluster: entry_version=1

DROP TABLE IF EXISTS sales.orders_all;
DROP TABLE IF EXISTS sales.orders;
DROP DATABASE IF EXISTS sales;
