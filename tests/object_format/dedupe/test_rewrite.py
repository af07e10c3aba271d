"""Options of pass 2."""

from __future__ import annotations

import pytest

from object_format.dedupe.rewrite import delete_horizon


@pytest.mark.parametrize(
    ("now_ms", "retention_ms", "horizon_ms"),
    [(10, 5, 15), (10, 0, 10), (1, 2**63 - 2, 2**63 - 1), (1, 2**63 - 1, None)],
)
def test_the_delete_horizon_is_a_timestamp_or_never(
    now_ms: int, retention_ms: int, horizon_ms: int | None
) -> None:
    assert delete_horizon(now_ms, retention_ms) == horizon_ms
