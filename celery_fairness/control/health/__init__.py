"""A whole installation: status, verdict, metrics, events, and the checks of it."""
