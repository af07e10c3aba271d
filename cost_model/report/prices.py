"""Prices in TOML; each table names its source and date."""

from __future__ import annotations

import difflib
import tomllib
from dataclasses import dataclass
from importlib import resources
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from core.errors import InvalidInputError, NotFoundError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

GIB: Final = 2**30
"""Price lists call it GB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StorePrices:
    """Prices of an object store in dollars.

    Storage has steps: a price per GiB and month, and the number of GiB from which it applies.
    """

    storage_gb_month: tuple[tuple[float, float], ...]
    put_thousand: float
    get_thousand: float
    delete_thousand: float
    upload_gb: float
    retrieval_gb: float

    def storage(self, size: float) -> float:
        """Return the dollars per month for that many bytes."""
        gigabytes, dollars = size / GIB, 0.0
        steps = [*self.storage_gb_month, (float("inf"), 0.0)]
        for (begin, price), (end, _) in pairwise(steps):
            dollars += price * max(0.0, min(gigabytes, end) - begin)
        return dollars


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """All prices; `sources` has the source and date of each table."""

    region: str
    date: str
    s3_standard: StorePrices
    s3_express: StorePrices
    compute: Mapping[str, float]
    block_storage: Mapping[str, float]
    network: Mapping[str, float]
    sources: Mapping[str, str]


def load_prices(file: Path | None = None) -> Prices:
    """Return the list prices of the package; prices in `file` replace them one by one.

    Raise InvalidInputError if a table or a price is unknown.
    """
    text = (resources.files("cost_model.report") / "prices.toml").read_text()
    tables = tomllib.loads(text)
    if file is not None:
        _override(tables, _read(file), str(file))
    sources = {
        name: f"{table['source']} ({table['date']})"
        for name, table in tables.items()
        if isinstance(table, dict)
    }
    return Prices(
        region=tables["region"],
        date=tables["date"],
        s3_standard=_store(tables["s3_standard"]),
        s3_express=_store(tables["s3_express"]),
        compute=_numbers(tables["compute"]),
        block_storage=_numbers(tables["block_storage"]),
        network=_numbers(tables["network"]),
        sources=sources,
    )


def _read(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text())
    except OSError as failure:
        raise NotFoundError(
            f"price file {file} cannot be read: {failure.strerror}", remedy="name a TOML file with --prices"
        ) from None
    except tomllib.TOMLDecodeError as failure:
        raise InvalidInputError(
            f"price file {file} is not TOML: {failure}",
            remedy="correct the file; docs/explanation/cost.md has the prices",
        ) from None


def _override(tables: dict[str, Any], overrides: Mapping[str, Any], origin: str) -> None:
    for name, value in overrides.items():
        _require_known(name, tables, origin)
        if not isinstance(tables[name], dict):
            tables[name] = str(value)
            continue
        for key, price in value.items():
            _require_known(key, tables[name], f"{origin}, {name}")
            valid = isinstance(price, type(tables[name][key])) or (
                isinstance(price, int | float) and isinstance(tables[name][key], float)
            )
            if not valid:
                raise InvalidInputError(
                    f"price file {origin}: {name}.{key} is {price!r}",
                    remedy=f"give a value such as {tables[name][key]!r}",
                )
            tables[name][key] = price


def _require_known(name: str, known: Mapping[str, Any], origin: str) -> None:
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        remedy = f"did you mean {near[0]}?" if near else f"known names are {', '.join(known)}"
        raise InvalidInputError(f"price file {origin}: there is no {name!r}", remedy=remedy)


def _store(table: Mapping[str, Any]) -> StorePrices:
    steps = tuple((float(begin), float(price)) for begin, price in table["storage_gb_month"])
    others = {name: float(value) for name, value in table.items() if name.endswith(("_thousand", "_gb"))}
    return StorePrices(storage_gb_month=steps, **others)


def _numbers(table: Mapping[str, Any]) -> dict[str, float]:
    return {name: float(value) for name, value in table.items() if isinstance(value, int | float)}
