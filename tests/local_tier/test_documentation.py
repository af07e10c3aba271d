from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_page_on_the_local_tier_names_modules_and_tests_that_exist() -> None:
    page = (ROOT / "docs" / "explanation" / "local-tier.md").read_text()
    named = set(re.findall(r"`([a-z_]+\.py)`", page))
    modules = {path.name for path in (ROOT / "local_tier").rglob("*.py")}
    tests = {path.name for path in (ROOT / "tests" / "local_tier").rglob("*.py")}
    tables = "\n".join(line for line in page.splitlines() if line.startswith("|"))

    assert named <= modules | tests
    assert {name for name in tests if name.startswith("test_")} <= {*named, "test_documentation.py"}
    assert len(re.findall(r"^\| .+ \| .+ \| .+ \|$", tables, re.MULTILINE)) > 60
