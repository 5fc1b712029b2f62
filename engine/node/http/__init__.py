"""ClickHouse's HTTP interface (port 8123): requests in, results and exceptions out."""
