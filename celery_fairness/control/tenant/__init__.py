"""Tenants: their tiers, boosts and waiting tasks."""
