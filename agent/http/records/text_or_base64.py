"""Bytes in JSON: text if they are valid UTF-8, base64 otherwise. Both are lossless."""

from __future__ import annotations

import base64
import binascii
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

BASE64 = "base64"


def put_bytes(target: dict[str, object], field: str, data: bytes | memoryview | None) -> None:
    """Set `field` to null, to the text, or to base64 if `data` is not valid UTF-8.

    In the last case the field `<field>_encoding` is set, too.
    """
    if data is None:
        target[field] = None
        return
    try:
        target[field] = str(data, "utf-8")
    except UnicodeDecodeError:
        target[field] = base64.b64encode(data).decode("ascii")
        target[f"{field}_encoding"] = BASE64


def get_bytes(source: Mapping[str, object], field: str) -> bytes | None:
    """Return the bytes that `put_bytes` stored. Raises `ValueError` for invalid base64."""
    text = source.get(field)
    if text is None:
        return None
    assert isinstance(text, str)
    if source.get(f"{field}_encoding") != BASE64:
        return text.encode()
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ValueError(f"{field} is not valid base64: {error}") from None
