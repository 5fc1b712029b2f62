"""The data source as Spark sees it."""

from __future__ import annotations

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamWriter, DataSourceWriter
from pyspark.sql.types import StructType

from spark_apps.clickhouse_cluster.direct import DirectWriter, begin_direct
from spark_apps.clickhouse_cluster.options import FORMAT, Delivery, Options, Pushdown
from spark_apps.clickhouse_cluster.reader import ClusterReader, PushingReader
from spark_apps.clickhouse_cluster.records import Mode
from spark_apps.clickhouse_cluster.stream_writer import StreamWriter
from spark_apps.clickhouse_cluster.target import Target
from spark_apps.clickhouse_cluster.types import require_values_to_read, spark_schema
from spark_apps.clickhouse_cluster.writer import ClusterWriter, Job


class ClickHouseClusterSource(DataSource):
    """`format("clickhouse_cluster")`. Options: `spark_apps.clickhouse_cluster.options`."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        """All columns that the table stores."""
        columns = Target.find(Options.parse(self.options)).columns
        require_values_to_read(columns)
        return spark_schema(columns)

    def reader(self, schema: StructType) -> DataSourceReader:
        options = Options.parse(self.options)
        kind = PushingReader if options.pushdown is Pushdown.ON else ClusterReader
        return kind(options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        mode = Mode.OVERWRITE_PARTITIONS if overwrite else Mode.APPEND
        options, names = Options.parse(self.options), schema.fieldNames()
        job = Job.begin(options, schema, mode)
        # What was decided is finished in the way in which it was begun.
        decided = None if job.plan is None else Mode(job.plan.mode)
        if decided is Mode.DIRECT or (decided is None and options.delivery is Delivery.DIRECT):
            return DirectWriter(begin_direct(job), names)
        return ClusterWriter(job, names)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        return StreamWriter(Options.parse(self.options), schema, overwrite=overwrite)


def register(spark: SparkSession) -> None:
    """Make the format known to a session, and let filters travel to the servers where that is asked for."""
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    spark.dataSource.register(ClickHouseClusterSource)
