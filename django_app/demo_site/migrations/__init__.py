"""Migrations of the demo site."""
