from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from core.errors import FatalError
from local_tier.cleaner.log_cleaning_state import (
    IN_PROGRESS,
    Aborted,
    LogCleaningState,
    LogCleaningStates,
    Paused,
)
from local_tier.topic_partition import TopicPartition

LOGS = [TopicPartition("orders", partition) for partition in range(3)]
logs = st.sampled_from(LOGS)


class CleaningStatesMachine(RuleBasedStateMachine):
    """Compares the states with a model: per log, whether an operation runs, and the number of pauses."""

    def __init__(self) -> None:
        super().__init__()
        self.states = LogCleaningStates()
        self.worked_on: set[TopicPartition] = set()
        self.pauses = dict.fromkeys(LOGS, 0)

    @rule(log=logs)
    def begin(self, log: TopicPartition) -> None:
        if log in self.worked_on or self.pauses[log]:
            with pytest.raises(FatalError, match="cannot be worked on"):
                self.states.begin(log)
        else:
            self.states.begin(log)
            self.worked_on.add(log)

    @rule(log=logs)
    def end(self, log: TopicPartition) -> None:
        if log in self.worked_on:
            assert self.states.end(log) == (self.pauses[log] == 0)
            self.worked_on.remove(log)
        else:
            with pytest.raises(FatalError, match="cannot be ended"):
                self.states.end(log)

    @rule(log=logs)
    def pause(self, log: TopicPartition) -> None:
        assert self.states.pause(log) == (log not in self.worked_on)
        self.pauses[log] += 1

    @rule(log=logs)
    def resume(self, log: TopicPartition) -> None:
        if self.pauses[log] and log not in self.worked_on:
            self.states.resume(log)
            self.pauses[log] -= 1
        else:
            with pytest.raises(FatalError, match="cannot be resumed"):
                self.states.resume(log)

    @invariant()
    def states_tell_both_facts(self) -> None:
        for log in LOGS:
            assert self.states.state(log) == self.expected(log)
            assert self.states.is_idle(log) == (self.expected(log) is None)
            assert self.states.is_aborted(log) == isinstance(self.expected(log), Aborted)
            assert self.states.is_paused(log) == isinstance(self.expected(log), Paused)

    def expected(self, log: TopicPartition) -> LogCleaningState | None:
        if log in self.worked_on:
            return Aborted(self.pauses[log]) if self.pauses[log] else IN_PROGRESS
        return Paused(self.pauses[log]) if self.pauses[log] else None


TestCleaningStates = CleaningStatesMachine.TestCase
