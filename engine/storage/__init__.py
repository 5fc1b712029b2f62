"""chDB: connections, local execution."""
