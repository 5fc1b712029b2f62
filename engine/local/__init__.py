"""The local stack: ZooKeeper, nodes and Airflow on one machine."""
