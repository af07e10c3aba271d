"""Bytes in JSON: readable where they are text, lossless where they are not."""

from __future__ import annotations

import base64
import binascii
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

BASE64 = "base64"


def put_bytes(target: dict[str, object], field: str, data: bytes | memoryview | None) -> None:
    """Set `field`: null, the text whose UTF-8 is `data`, or base64 with `<field>_encoding` beside it."""
    if data is None:
        target[field] = None
        return
    try:
        target[field] = str(data, "utf-8")
    except UnicodeDecodeError:
        target[field] = base64.b64encode(data).decode("ascii")
        target[f"{field}_encoding"] = BASE64


def get_bytes(source: Mapping[str, object], field: str) -> bytes | None:
    """The inverse of `put_bytes`; ValueError names what is wrong with base64 that is none."""
    text = source.get(field)
    if text is None:
        return None
    assert isinstance(text, str)
    if source.get(f"{field}_encoding") != BASE64:
        return text.encode()
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ValueError(f"{field} is not base64: {error}") from None
