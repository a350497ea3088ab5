"""The limiter of a gate: it grants and rejects slots, and keeps the tasks that are parked."""
