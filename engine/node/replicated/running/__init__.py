"""Which replicated tables this node has, and their replicas' life."""
