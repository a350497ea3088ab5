"""The checks of ``celery fairness doctor``: what is wrong with an installation, and its fix."""
