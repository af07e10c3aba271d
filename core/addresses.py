"""Addresses of listeners, as text and as host and port."""

from __future__ import annotations

import ipaddress
from typing import Final

_MAX_PORT: Final = 65535


def split_address(address: str) -> tuple[str, int]:
    """Split `HOST:PORT` into host and port; brackets around an IPv6 host are removed.

    Raises ValueError with the rule that the address breaks.
    """
    host, separator, port = address.rpartition(":")
    if not separator or not host:
        raise ValueError(f"{address!r} is not HOST:PORT, such as 127.0.0.1:9092")
    if not port.isascii() or not port.isdecimal() or int(port) > _MAX_PORT:
        raise ValueError(f"{port!r} in {address!r} is not a port: 0 (any free one) to {_MAX_PORT}")
    if host.startswith("[") and host.endswith("]"):
        return host[1:-1], int(port)
    if ":" in host:
        raise ValueError(f"the IPv6 host in {address!r} needs brackets, such as [::1]:8080")
    return host, int(port)


def join_address(host: str, port: int) -> str:
    """Return HOST:PORT, with brackets around an IPv6 host."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def network_of(host: str) -> str:
    """Return the addresses that one client can choose from: the /64 of an IPv6 address, or an IPv4 address.

    An IPv6 host has 2^64 addresses at least. Text that is no address stays as it is.
    """
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.IPv6Network((int(address) >> 64 << 64, 64)))


def is_loopback(host: str) -> bool:
    """Return True if only this machine can connect to a listener on `host`."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"
