"""Sensors: wait for statements."""

from oncluster_airflow.sensors.ddl import DDLFinishedSensor
from oncluster_airflow.sensors.migration import MigrationStatementSensor

__all__ = ["DDLFinishedSensor", "MigrationStatementSensor"]
