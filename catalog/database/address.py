"""Parsing of the catalog's address, which may contain a password, without showing any part of it in an error.

A password in a URL must be percent-encoded. libpq reads an unescaped one in another way: of
`postgresql://u:p@ss/w@host/db`, `ss` is the host and `w@host/db` the database, and messages about these show
the password. Such URLs are therefore rejected before libpq sees them.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import psycopg
from psycopg.conninfo import conninfo_to_dict

from catalog.errors import CatalogAddressError

if TYPE_CHECKING:
    from collections.abc import Mapping

_SCHEMES: Final = ("postgresql://", "postgres://")
_PORTS: Final = re.compile(r"[0-9]{0,5}(,[0-9]{0,5})*")
_FORM: Final = (
    "use the form postgresql://user:password@host:port/database with a percent-encoded password "
    "('@' is %40, ':' %3A, '/' %2F, '?' %3F, '#' %23, '%' %25), or leave it to PGPASSWORD or ~/.pgpass"
)


def parse_address(address: str) -> Mapping[str, str]:
    """Return the parameters of a URL, or of a connection string of the form `host=… dbname=…`.

    CatalogAddressError contains no part of the address.
    """
    problem = _problem(address)
    if problem is None:
        try:
            given = conninfo_to_dict(address)
        except (psycopg.Error, ValueError):
            problem = "cannot be parsed"
        else:
            if _PORTS.fullmatch(str(given.get("port") or "")):
                return {name: str(value) for name, value in given.items()}
            problem = "has a port that is not a number"
    raise CatalogAddressError(f"the catalog's URL {problem}", remedy=_FORM) from None


def check_url(url: str) -> None:
    """Raise CatalogAddressError unless `url` is a URL that `parse_address` accepts."""
    if not url.startswith(_SCHEMES):
        raise CatalogAddressError("the catalog's URL does not begin with postgresql://", remedy=_FORM)
    parse_address(url)


def _problem(address: str) -> str | None:
    """Return what shows that a URL has an unescaped character; None for other addresses."""
    scheme = next((each for each in _SCHEMES if address.startswith(each)), None)
    if scheme is None:
        return "is neither a URL nor a list of parameters" if "://" in address.partition("=")[0] else None
    rest = address.removeprefix(scheme)
    place, _, query = rest.partition("?")
    database = place.partition("/")[2]
    if rest.count("@") > 1 or "@" in database or "@" in query:
        return "has an unescaped character before its last '@'"
    if "/" in database or "#" in rest:
        return "has an unescaped '/', '?' or '#' in its password"
    return None


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
