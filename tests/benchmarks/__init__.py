"""Benchmarks: seeded commands that print ratios against stock Celery, taken in one run."""
