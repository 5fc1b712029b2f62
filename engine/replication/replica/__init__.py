"""A running replica: its session with Keeper, its queue, and what it does by itself."""
