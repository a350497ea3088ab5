"""Django app of celery_fairness: tiers and tenants in the database, edited in the admin.

Invariant: it imports :mod:`celery_fairness`, never the other way round. Its import does nothing:
``AppConfig.ready`` connects signals and registers checks.

Weakness: it uses the current Celery app of the process. A Django process with several Celery apps
publishes to that one only.
"""
