"""`cluster()`, `remote()` and their kin, found in statements."""
