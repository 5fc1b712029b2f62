"""Operators: put statements into the queue; run migrations."""

from oncluster_airflow.operators.ddl import SubmitStatementOperator

__all__ = ["SubmitStatementOperator"]
