"""Quantities as text for people."""

from __future__ import annotations


def count(number: int, noun: str) -> str:
    """Return a number of things: 1 file, 2,000 files."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def human_bytes(size: float) -> str:
    """Return a size in binary units: 1.5 MiB."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"
