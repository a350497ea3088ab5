"""Ids, durations, timestamps, threads and logging: what knows nothing of limits."""
