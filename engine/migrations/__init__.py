"""Migrations: files, plan, lint, ledger, apply."""
