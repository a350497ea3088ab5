"""``celery -A APP fairness …``: looking at an installation from a shell."""
