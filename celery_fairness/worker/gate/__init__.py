"""Workers on other brokers: the gate before a task's body, and the ways back to the broker."""
