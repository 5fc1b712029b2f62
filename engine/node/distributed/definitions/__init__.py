"""Statements that make, change, show and drop Distributed tables, and what refers to them."""
