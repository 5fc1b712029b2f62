"""HTTP client for any server that speaks ClickHouse."""
