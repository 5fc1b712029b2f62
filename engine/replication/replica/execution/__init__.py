"""Entries of the queue are executed: a module for each kind, and the runner that calls them."""
