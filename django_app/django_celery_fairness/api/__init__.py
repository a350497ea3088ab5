"""The HTTP API: limits, queues, tenants, tiers, tasks, events and statistics under ``/ojs/v1/``.

A project includes :mod:`.urls`. Nothing else imports this package, so that a project without
django-ninja can use the rest of the app.
"""
