"""The examples: their pure parts in memory, and each of them run for real."""
