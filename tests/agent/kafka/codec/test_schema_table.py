"""The table of schemas is that of kio, and replaces kio's modules."""

from __future__ import annotations

import subprocess
import sys
from importlib import resources

import pytest

from agent.kafka.api_registry import APIS
from agent.kafka.codec.schema import TABLE, schema_of, versions_of
from agent.kafka.codec.schema_table import derive, table

_USE_ALL_MESSAGES = """
import sys
from agent.kafka.api_registry import APIS
from agent.kafka.codec import Message

for api in APIS:
    for version in range(api.min_version, api.max_version + 1):
        Message.of(api.name, version)
print(*(name for name in sys.modules if name.startswith("kio.schema.") and ".v" in name))
"""


def test_the_table_is_up_to_date() -> None:
    """If it fails, run `make references`."""
    assert (resources.files("agent.kafka.codec") / TABLE).read_bytes() == table()


@pytest.mark.parametrize("direction", ["request", "response"])
def test_a_schema_of_the_table_is_the_derived_one(direction: str) -> None:
    for api in APIS:
        for version in versions_of(api.name):
            assert schema_of(api.name, version, direction) == derive(api.name, version, direction)


def test_no_message_imports_generated_classes() -> None:
    """Each import of them takes the interpreter from the event loop for up to 0.2 s."""
    done = subprocess.run(
        [sys.executable, "-c", _USE_ALL_MESSAGES], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == []
