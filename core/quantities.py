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


def human_duration(seconds: int) -> str:
    """Return a duration in its largest two units, such as `1 d 3 h`."""
    parts = [
        (seconds // 86_400, "d"),
        (seconds // 3_600 % 24, "h"),
        (seconds // 60 % 60, "min"),
        (seconds % 60, "s"),
    ]
    first = next((index for index, (value, _) in enumerate(parts) if value), len(parts) - 1)
    return " ".join(f"{value} {unit}" for value, unit in parts[first : first + 2])
