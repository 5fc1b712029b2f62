"""Which Distributed tables this node has, and under which names."""
