"""Django app of celery_fairness: tiers and tenants in the database, edited in the admin.

Invariant: it imports :mod:`celery_fairness`, never the other way round, and importing it does
nothing; signals are connected and checks registered when Django calls ``AppConfig.ready``.

Weakness: it talks to the one Celery app that the process has as its current app; a Django process
that sends to several Celery apps publishes to that one only.
"""
