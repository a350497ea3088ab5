"""Management commands of the demo site."""
