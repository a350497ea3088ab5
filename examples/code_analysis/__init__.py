"""A small code-analysis platform whose users share one set of workers.

Run it with `python -m examples.code_analysis`. A service `analysis` parses packages, a service
`specview` writes pages about them, users have tiers, and beat analyses again in the background.

Weakness: everything runs on one machine. Workers and users' jobs compete for the same cores, so its
times compare the runs, and do not measure your workers.
"""
