"""Other people's packages beside this one: what their users rely on, on both paths."""
