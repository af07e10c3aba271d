"""Bounds of the format that also those go by who decide what is written; nothing is imported for them."""

from __future__ import annotations

from typing import Final

MAX_SPAN: Final = 2**40
"""Offsets of one section at most, where they are taken as a range: for each 65,536, 14 bytes as they are
written and some 90 as a bitmap."""
