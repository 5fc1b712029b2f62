"""ClickHouse-style configuration: XML and YAML, read once at the edge."""
