"""The state of the limiter in Redis: key names, the function library and the connection."""
