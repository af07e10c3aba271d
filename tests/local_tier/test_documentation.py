from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_local_tier_page_names_all_modules_and_tests() -> None:
    """Every module and test module is named with its path, and every path exists."""
    page = (ROOT / "docs" / "explanation" / "local-tier.md").read_text()
    named = set(re.findall(r"`([a-z_/]+\.py)`", page))
    modules = _modules(ROOT / "local_tier")
    tests = _modules(ROOT / "tests" / "local_tier")
    rules = re.findall(r"^\| .+ \| `.+` \| `.+` \|$", page, re.MULTILINE)

    assert named <= modules | tests
    assert modules <= named
    assert {path for path in tests if Path(path).name.startswith("test_")} <= {
        *named,
        "test_documentation.py",
    }
    assert len(rules) > 60


def _modules(root: Path) -> set[str]:
    found = {path.relative_to(root).as_posix() for path in root.rglob("*.py")}
    return {path for path in found if not path.endswith("__init__.py")}
