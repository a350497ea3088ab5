"""``celery -A APP fairness …``: looks at an installation from a shell, and changes it."""
