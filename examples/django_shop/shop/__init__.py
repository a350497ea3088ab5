"""A shop. The import makes `Fairness` known in web processes too: they publish tiers."""

from shop.celery import app as celery_app

__all__ = ["celery_app"]
