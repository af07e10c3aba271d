"""UUIDs as Kafka writes them in files: 22 characters of URL-safe base 64."""

from __future__ import annotations

import binascii
from base64 import urlsafe_b64decode, urlsafe_b64encode
from uuid import UUID


def uuid_text(value: UUID) -> str:
    """The text form; `parse_uuid` is its inverse."""
    return urlsafe_b64encode(value.bytes).decode().rstrip("=")


def parse_uuid(text: str) -> UUID | None:
    """The UUID; None for what is none."""
    try:
        raw = urlsafe_b64decode(text.encode() + b"==")
    except (binascii.Error, UnicodeEncodeError):
        return None
    value = UUID(bytes=raw) if len(raw) == 16 else None
    return value if value is not None and uuid_text(value) == text else None
