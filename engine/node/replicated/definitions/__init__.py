"""Statements that make, replace, convert, rename, show and drop replicated tables."""
