"""Where the limiter's state lies: key names, functions and the connection to Redis."""
