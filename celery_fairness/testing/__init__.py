"""What a project needs to test its own fair tasks: a private Redis server to run them on.

Import from the modules (`celery_fairness.testing.server`): importing this package does nothing.
"""
