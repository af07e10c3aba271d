"""The check of the failover drill in `docs/how-to/operate.md` reports a gap at once."""

from __future__ import annotations

import re
import subprocess
import textwrap
from pathlib import Path
from typing import Final

_GUIDE: Final = Path(__file__).parents[2] / "docs" / "how-to" / "operate.md"
# Prints some numbers, and then its standard input.
_CONSUMER: Final = "siltstone() { seq 1 199; printf '%s\\n' 200 202 202 203; cat; }\n"


def test_the_check_prints_missing_and_repeated_numbers_while_the_consumer_runs() -> None:
    found = re.search(
        r"^   siltstone consume drill .*?(?=^   ```)", _GUIDE.read_text(), re.DOTALL | re.MULTILINE
    )
    assert found is not None
    with subprocess.Popen(
        ["bash", "-c", _CONSUMER + textwrap.dedent(found[0])],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as check:
        assert check.stdin is not None
        assert check.stdout is not None
        first = [check.stdout.readline() for _ in range(3)]
        rest, _ = check.communicate("205\n")

    assert first == ["200 records\n", "expected 201, read 202\n", "expected 203, read 202\n"]
    assert rest == "expected 204, read 205\n"
