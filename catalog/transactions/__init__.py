"""Transactional ids, and the transactions of their producers."""
