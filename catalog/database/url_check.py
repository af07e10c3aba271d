"""Check of the catalog's URL before libpq sees it, so that no message shows a part of its password.

A password in a URL must be percent-encoded. libpq reads an unescaped one in another way: of
`postgresql://u:p@ss/w@host/db`, `ss` is the host and `w@host/db` the database, and messages about these show
the password. This module imports no driver, because every command loads it.
"""

from __future__ import annotations

import re
from typing import Final

from catalog.errors import CatalogAddressError

_SCHEMES: Final = ("postgresql://", "postgres://")
_WRONG_ESCAPE: Final = re.compile(r"%(?![0-9A-Fa-f]{2})")
FORM: Final = (
    "use the form postgresql://user:password@host:port/database with a percent-encoded password "
    "('@' is %40, ':' %3A, '/' %2F, '?' %3F, '#' %23, '%' %25), or leave it to PGPASSWORD or ~/.pgpass"
)


def check_url(url: str) -> None:
    """Raise CatalogAddressError unless `url` is a URL without unescaped characters."""
    if not url.startswith(_SCHEMES):
        raise CatalogAddressError("the catalog's URL does not begin with postgresql://", remedy=FORM)
    if (problem := problem_with(url)) is not None:
        raise CatalogAddressError(f"the catalog's URL {problem}", remedy=FORM)


def problem_with(address: str) -> str | None:
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
    if _WRONG_ESCAPE.search(rest):
        return "has a '%' without two hexadecimal digits"
    return None
