"""Databases with the engine Replicated, as SQL sees them."""
