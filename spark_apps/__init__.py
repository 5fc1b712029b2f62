"""Spark applications: a data source for clusters that speak ClickHouse, and jobs that load with it."""
