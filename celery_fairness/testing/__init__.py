"""For tests of your own fair tasks: a pytest plugin, a private Redis server, a fake limiter.

Import from the modules (`celery_fairness.testing.server`). Importing this package does nothing.
"""
