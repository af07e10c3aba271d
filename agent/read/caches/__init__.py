"""Caches of what an agent read from the object store, which share one limit."""
