"""The keys of limits: their state, the reasons of it, and what an operator changes for a time."""
