"""Modules that several benchmarks share, and steps of single benchmarks."""
