"""Tests of the Django app and the demo site."""
