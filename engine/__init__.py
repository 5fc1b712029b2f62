"""The node runtime of oncluster and everything that needs neither Airflow nor Spark."""

from engine.timeouts import mend

mend()
