"""`spark.read/write.format("clickhouse_cluster")`: tables that are spread over the shards of a cluster.

    register(spark)
    frame.write.format("clickhouse_cluster").option("url", "http://node01:8123").mode("append").save("db.t")

See docs/how-to/load-with-spark.md, and docs/concepts/exactly-once-loading.md for what is promised.
"""

from spark_apps.clickhouse_cluster.source import ClickHouseClusterSource, register

__all__ = ["ClickHouseClusterSource", "register"]
