"""Examples that run: each is real code on real input, and each is tested."""
