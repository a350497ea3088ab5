"""The package as users get it: source archive, wheel, and the quick start with the wheel.

``make dist`` (``python -m tests.package``) leaves both in ``dist/``.
"""
