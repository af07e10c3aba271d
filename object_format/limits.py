"""Bounds of the file format. This module imports nothing, so that planners can use it cheaply."""

from __future__ import annotations

from typing import Final

MAX_SPAN: Final = 2**40
"""The largest number of offsets that one section may cover.

Memory for a range of offsets grows with its span: every 65,536 offsets take up to 14 bytes in a file and
about 90 bytes as a bitmap in memory.
"""
