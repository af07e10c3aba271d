"""`docs/reference/kafka.md` agrees with the served APIs."""

from __future__ import annotations

import re
from pathlib import Path

from agent.kafka.api_registry import APIS
from agent.kafka.codec import message_versions
from catalog.config.broker_definitions import BROKER_SETTINGS

_PAGE = Path(__file__).parents[3] / "docs" / "reference" / "kafka.md"
_ROW = re.compile(r"^\| (\w+) \| (\d+) \| (\d+) to (\d+) \| ", re.MULTILINE)


def test_the_page_lists_every_api_with_its_versions() -> None:
    rows = {(name, int(key), int(low), int(high)) for name, key, low, high in _ROW.findall(_PAGE.read_text())}
    served = {(_title(api.name), api.key, api.min_version, api.max_version) for api in APIS}
    assert rows == served


def test_the_page_lists_every_broker_setting_that_clients_can_change() -> None:
    _, _, section = _PAGE.read_text().partition("they have no effect:")
    table, _, _ = section.partition("A change of any other setting")
    assert sorted(re.findall(r"`([a-z]+\.[a-z0-9.]+)`", table)) == sorted(BROKER_SETTINGS)


def _title(name: str) -> str:
    return name.title().replace("_", "")


# Unstable versions, which Kafka serves only if configured to.
_UNSTABLE = {"init_producer_id": 6}


def test_every_version_of_kafka_is_supported() -> None:
    """The range is that of the schemas of Kafka's messages."""
    for api in APIS:
        lowest, highest = message_versions(api.name)
        if highest == _UNSTABLE.get(api.name):
            highest -= 1
        assert (api.name, api.min_version, api.max_version) == (api.name, lowest, highest)


def test_api_keys_are_unique() -> None:
    keys = [api.key for api in APIS]
    assert sorted(set(keys)) == sorted(keys)
