"""Coordination of transactions."""
