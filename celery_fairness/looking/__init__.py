"""Reads what an installation holds, for people and their programs; writes nothing."""
