"""Loads flights with Spark; see `oncluster_airflow.etl_dag` (an airflow plugin's package)."""

from __future__ import annotations

from oncluster_airflow.etl_dag import etl_dag

dag = etl_dag()
