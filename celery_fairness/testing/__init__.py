"""For tests of your own fair tasks: a pytest plugin and a private Redis server.

Import from the modules (`celery_fairness.testing.server`). Importing this package does nothing.
"""
