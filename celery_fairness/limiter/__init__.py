"""The limiter: who may start now, in Redis for workers and in memory for tests."""
