"""The Django suite: run by ``tests/django/test_on_databases.py``, on each database."""
