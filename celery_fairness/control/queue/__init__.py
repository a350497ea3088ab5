"""Queues: their tasks, their tenants' shares, and their limits."""
