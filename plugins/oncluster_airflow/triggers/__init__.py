"""Triggers: what waits in the triggerer."""

from oncluster_airflow.triggers.ddl import DDLFinishedTrigger
from oncluster_airflow.triggers.migration import EarlierStatementTrigger, MigrationStatementTrigger

__all__ = ["DDLFinishedTrigger", "EarlierStatementTrigger", "MigrationStatementTrigger"]
