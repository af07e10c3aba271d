"""For how long a client may keep memory without doing anything about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agent.runtime.byte_budget import ByteBudget

_LOOKS = 4  # in the shorter time: a loop that was held up finds more than one of them overdue


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowClientPolicy:
    """It is looked every `look_seconds` whether something has moved since the last time.

    After `looks` without it a client is given up, and after `scarce_looks` already when it holds memory of
    which more than half is held (any of `memory`).
    """

    look_seconds: float
    looks: int
    scarce_looks: int
    memory: Sequence[ByteBudget]

    @classmethod
    def of(cls, seconds: float, scarce_seconds: float, memory: Sequence[ByteBudget]) -> SlowClientPolicy:
        """One with looks of the right length."""
        scarce_seconds = min(seconds, scarce_seconds)
        look_seconds = scarce_seconds / _LOOKS
        return cls(
            look_seconds=look_seconds,
            looks=round(seconds / look_seconds),
            scarce_looks=_LOOKS,
            memory=memory,
        )

    @property
    def scarce_seconds(self) -> float:
        """The shorter of both times."""
        return self.look_seconds * self.scarce_looks

    @property
    def is_memory_scarce(self) -> bool:
        """Whether others may have to wait for what is held."""
        return any(each.is_scarce for each in self.memory)

    def is_over(self, looks: int, *, holds_memory: bool) -> bool:
        """Whether a client is given up that has not moved in so many looks."""
        return looks >= self.looks or (looks >= self.scarce_looks and holds_memory and self.is_memory_scarce)
