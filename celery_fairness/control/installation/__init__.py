"""What all others look at: one installation, how to read its Redis, and the workers that it has."""
