"""Loading with Spark, as seen from outside Spark: what is asked for, how it is launched, whether it arrived.

    request    what to load: cluster, days, mode; the command line of the Spark application
    launch     `spark-submit` as a process, with the environment that Spark needs
    report     what the application says it has read, written and put aside
    check      asks every replica of every shard whether it holds what was written

The application itself is `spark_apps/load_flights.py`. Nothing here imports Spark.
"""
