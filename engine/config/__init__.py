"""ClickHouse-style configuration: XML and YAML, read once at the edge.

`model` holds the values, `load` reads them from files. Neither is imported here: who needs values only should
not pay for the parsers.
"""
