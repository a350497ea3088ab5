"""Single tasks: where they are, why they wait, and lists of them."""
