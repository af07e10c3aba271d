"""Parsing of the catalog's address, which may contain a password; no error shows any part of it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import psycopg
from psycopg.conninfo import conninfo_to_dict

from catalog.database.url_check import FORM, problem_with
from catalog.errors import CatalogAddressError

if TYPE_CHECKING:
    from collections.abc import Mapping

_PORTS: Final = re.compile(r"[0-9]{0,5}(,[0-9]{0,5})*")


def parse_address(address: str) -> Mapping[str, str]:
    """Return the parameters of a URL, or of a connection string of the form `host=… dbname=…`.

    CatalogAddressError contains no part of the address.
    """
    problem = problem_with(address)
    if problem is None:
        try:
            given = conninfo_to_dict(address)
        except (psycopg.Error, ValueError):
            problem = "cannot be parsed"
        else:
            if _PORTS.fullmatch(str(given.get("port") or "")):
                return {name: str(value) for name, value in given.items()}
            problem = "has a port that is not a number"
    raise CatalogAddressError(f"the catalog's URL {problem}", remedy=FORM) from None


def describe_address(address: str) -> str:
    """Return hosts, ports and database of an address for messages, without the password."""
    try:
        given = parse_address(address)
    except CatalogAddressError:
        return "a malformed address"
    hosts = (given.get("host") or given.get("hostaddr") or "localhost").split(",")
    ports = (given.get("port") or "5432").split(",")
    if len(ports) != len(hosts):
        ports = ports[:1] * len(hosts)
    places = ",".join(f"{host}:{port}" for host, port in zip(hosts, ports, strict=True))
    return f"{places}/{given.get('dbname', '')}"
