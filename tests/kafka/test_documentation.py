"""`docs/kafka.md` lists what is served."""

from __future__ import annotations

import re
from pathlib import Path

from agent.kafka.table import APIS

_PAGE = Path(__file__).parents[2] / "docs" / "kafka.md"
_ROW = re.compile(r"^\| (\w+) \| (\d+) \| (\d+) to (\d+) \| ", re.MULTILINE)


def test_the_page_lists_every_api_with_its_versions() -> None:
    rows = {(name, int(key), int(low), int(high)) for name, key, low, high in _ROW.findall(_PAGE.read_text())}
    served = {(api.name.title().replace("_", ""), api.key, api.lowest, api.highest) for api in APIS}
    assert rows == served


def test_no_key_is_served_twice() -> None:
    keys = [api.key for api in APIS]
    assert sorted(set(keys)) == sorted(keys)
