"""ALTER, mutations, OPTIMIZE, CHECK and partitions of replicated tables; their parts as they are shown."""
