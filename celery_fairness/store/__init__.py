"""Where the limiter's state lies: key names, scripts and the connection to Redis."""
