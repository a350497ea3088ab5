"""What the documentation says is what the code does."""
