"""Benchmarks: one command each; results with what produced them lie in ``results/``."""
