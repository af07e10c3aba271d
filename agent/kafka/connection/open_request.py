"""A request whose answer has not left: its place in the order of answers, and what it holds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from agent.kafka.api import RetainedBuffers
from agent.read.fetch_memory import SMALL_ANSWER

if TYPE_CHECKING:
    from agent.kafka.codec.writing import Buffers
    from agent.kafka.connection.outgoing import Outgoing
    from agent.kafka.dispatch import Answer

# With what is around the batches.
_SMALL_BYTES = SMALL_ANSWER + 64 * 1024


@dataclass(slots=True)
class OpenRequest:
    """One answer, there or to come, and the bytes of its connection's budget that are counted for it.

    `ready` are the answer's own, which waits for its turn.
    """

    answer: Answer
    held: int = 0
    ready: int = 0
    is_written: bool = False

    @property
    def holds_memory(self) -> bool:
        """Whether the answer itself does."""
        return isinstance(self.answer, RetainedBuffers)

    def count(self, frame: memoryview) -> None:
        """Find out what it holds: an answer to come the request it is for, and one that is there itself."""
        if callable(self.answer):
            self.held = len(frame)
        elif isinstance(self.answer, list):
            self.held = self.ready = _size(self.answer)
        elif self.answer is not None:  # what it holds is counted elsewhere
            self.ready = _size(self.answer.buffers)

    def write_to(self, outgoing: Outgoing, *, more: bool = False) -> None:
        """Hand the answer's bytes over, once; what holds memory holds it until they have left.

        With `more` others are about to follow, and it may wait for them.
        """
        if self.is_written:
            return
        self.is_written = True
        if isinstance(self.answer, RetainedBuffers):
            outgoing.write(self.answer.buffers)
        elif isinstance(self.answer, list):  # an empty one is the answer with acks 0
            (outgoing.hold if more else outgoing.write)(self.answer)

    def release(self) -> None:
        """Let go of the memory that the answer itself holds."""
        if isinstance(self.answer, RetainedBuffers):
            self.answer.release()
            self.answer = None

    def release_small(self) -> None:
        """As `release`, of a small answer that was written: what is left of it is the transport's."""
        if isinstance(self.answer, RetainedBuffers) and _size(self.answer.buffers) <= _SMALL_BYTES:
            self.release()


def _size(buffers: Buffers) -> int:
    return sum([len(each) for each in buffers])
