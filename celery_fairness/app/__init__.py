"""The package's connection to a Celery app: Fairness, FairTask, signals and start-up."""
