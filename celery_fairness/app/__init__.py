"""What ties the package to a Celery app: Fairness, FairTask, signals and start-up."""
