"""The replica's queue in memory: its entries, which of them has to wait for what, and how it is shown."""
