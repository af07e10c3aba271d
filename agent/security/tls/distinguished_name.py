"""The subject of a certificate as Java writes it: RFC 2253, `CN=name,OU=unit,O=company`.

Kafka's rules map this text to names of users, so it must be the same to the last character
(`sun.security.x509.AVA.toRFC2253String`). OpenSSL has verified the certificate, so its DER is well-formed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

_CONTEXT_0: Final = 0xA0
_STRINGS: Final = {0x0C, 0x13, 0x14, 0x16, 0x1B, 0x1E}  # UTF-8, printable, T.61, IA5, general, BMP
_KEYWORDS: Final = {
    "2.5.4.3": "CN",
    "2.5.4.6": "C",
    "2.5.4.7": "L",
    "2.5.4.8": "ST",
    "2.5.4.9": "STREET",
    "2.5.4.10": "O",
    "2.5.4.11": "OU",
    "0.9.2342.19200300.100.1.1": "UID",
    "0.9.2342.19200300.100.1.25": "DC",
}
_ESCAPED: Final = frozenset(',=+<>#;"\\')
_SPACES: Final = " \r"


def subject_of(certificate: bytes) -> str:
    """Return the subject of a certificate in DER."""
    (_, body, _), *_ = _values(certificate)
    (_, signed, _), *_ = _values(body)
    fields = [value for tag, value, _ in _values(signed) if tag != _CONTEXT_0]
    _serial, _algorithm, _issuer, _validity, subject, *_ = fields
    names = [_relative_name(value) for _, value, _ in _values(subject)]
    return ",".join(reversed(names))


def _relative_name(attributes: bytes) -> str:
    return "+".join(_attribute(value) for _, value, _ in _values(attributes))


def _attribute(attribute: bytes) -> str:
    (_, encoded_type, _), (tag, value, whole) = _values(attribute)
    identifier = _object_identifier(encoded_type)
    keyword = _KEYWORDS.get(identifier)
    if keyword is None or tag not in _STRINGS:
        return f"{keyword or identifier}=#{whole.hex()}"
    return f"{keyword}={_escape(value.decode('utf-8', errors='replace'))}"


def _escape(text: str) -> str:
    first = len(text) - len(text.lstrip(_SPACES))
    last = len(text.rstrip(_SPACES))
    parts = []
    for at, character in enumerate(text):
        is_outer = at < first or at >= last
        if character == "\0":
            parts.append("\\00")
        else:
            parts.append(f"\\{character}" if is_outer or character in _ESCAPED else character)
    return "".join(parts)


def _values(data: bytes) -> Iterator[tuple[int, bytes, bytes]]:
    """Yield tag, contents and whole encoding of each value."""
    at = 0
    while at < len(data):
        start = at
        tag, length = data[at], data[at + 1]
        at += 2
        if length & 0x80:
            size = length & 0x7F
            length = int.from_bytes(data[at : at + size], "big")
            at += size
        yield tag, data[at : at + length], data[start : at + length]
        at += length


def _object_identifier(data: bytes) -> str:
    numbers, number = [], 0
    for byte in data:
        number = number << 7 | byte & 0x7F
        if not byte & 0x80:
            numbers.append(number)
            number = 0
    first = min(numbers[0] // 40, 2)
    return ".".join(map(str, [first, numbers[0] - 40 * first, *numbers[1:]]))
