"""Ids, durations, timestamps, threads and logging: modules that are independent of limits."""
