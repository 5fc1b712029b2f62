-- Orders on two shards, each on three replicas, and all of them as one table: what ClickHouse 18.16 understands, for the
-- profile "clickhouse" of docker-compose.yaml.
-- oncluster: entry_version=1

CREATE DATABASE IF NOT EXISTS sales;

CREATE TABLE IF NOT EXISTS sales.orders
(
    id       UInt64,
    day      Date,
    customer String,
    cents    UInt32
)
ENGINE = ReplicatedMergeTree('/clickhouse/tables/{order_shard}/sales/orders', '{replica}')
PARTITION BY toYYYYMM(day)
ORDER BY (day, id);

CREATE TABLE IF NOT EXISTS sales.orders_all AS sales.orders
ENGINE = Distributed(order_cluster, sales, orders, cityHash64(id));
