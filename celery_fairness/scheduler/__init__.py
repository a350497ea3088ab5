"""Calls to the Redis function library, and the types of their arguments and answers."""
