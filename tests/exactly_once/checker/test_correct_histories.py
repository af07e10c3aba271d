"""The checker finds nothing in correct histories, and counts what Kafka allows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from tests.exactly_once.checker.anomalies import Kind
from tests.exactly_once.checker.check import anomalies_of, violations_of
from tests.exactly_once.checker.history import Outcome, history_of, read_events
from tests.exactly_once.checker.model import Model, history_from

if TYPE_CHECKING:
    from pathlib import Path

    from tests.exactly_once.checker.model import Choice

CHOICES = st.lists(
    st.tuples(st.integers(0, 9), st.integers(0, 11), st.integers(0, 209)), min_size=5, max_size=80
)


@given(CHOICES)
def test_a_correct_history_has_no_violation(choices: list[Choice]) -> None:
    assert violations_of(history_of(history_from(choices))) == []


def test_concurrent_writers_may_write_in_different_orders() -> None:
    """Kafka does not isolate writers: this is counted, and is no violation."""
    model = Model()
    model.send("writer-0", "in/0")
    model.send("writer-1", "in/0")
    model.send("writer-1", "in/1")
    model.send("writer-0", "in/1")
    model.finish()
    history = history_of(model.events)
    assert {each.kind for each in anomalies_of(history)} == {Kind.CONCURRENT_G0}
    assert violations_of(history) == []


def test_a_transaction_whose_end_is_unknown_may_have_committed_or_not() -> None:
    for commits in (True, False):
        model = Model()
        model.send("writer-0", "in/0", acknowledged=False)
        model.end("writer-0", commits=commits, known=False)
        model.finish()
        history = history_of(model.events)
        assert violations_of(history) == []
        assert history.transactions["t1"].outcome is Outcome.UNKNOWN


def test_an_incomplete_last_line_is_ignored(tmp_path: Path) -> None:
    """A process that is killed writes half a line at most."""
    one, other = tmp_path / "one", tmp_path / "other"
    one.write_bytes(b'{"event":"begin","at":2}\n{"event":"se')
    other.write_bytes(b'{"event":"poll","at":1}\n')
    assert [event["event"] for event in read_events([one, other])] == ["poll", "begin"]
