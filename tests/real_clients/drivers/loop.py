"""The loop of a driver in Python: a request and an answer on each line, as in `tests/real_clients/node`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import orjson

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def serve(actions: Mapping[str, Callable[..., Any]]) -> None:
    """Do what is asked until the input ends."""
    for line in sys.stdin.buffer:
        given = orjson.loads(line)
        try:
            answer = {"result": actions[given.pop("do")](**given)}
        except Exception as failure:  # noqa: BLE001  # it is the test's to judge
            answer = {"error": f"{type(failure).__name__}: {failure}"}
        sys.stdout.buffer.write(orjson.dumps(answer, option=orjson.OPT_APPEND_NEWLINE))
        sys.stdout.buffer.flush()
