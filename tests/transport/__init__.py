"""The broker transport through kombu alone: no Celery worker takes part."""
