"""Benchmarks. Figures come from here alone, each with the command that repeats it."""
