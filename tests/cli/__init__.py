"""The command line on a real server."""
