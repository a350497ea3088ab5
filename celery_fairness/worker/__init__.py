"""The parts that run in workers: the gate before a task's body, and the renewer of its lease."""
