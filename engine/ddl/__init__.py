"""The distributed DDL queue."""
