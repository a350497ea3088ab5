"""What runs in workers: the gate before a task's body, and the keeper of its lease."""
