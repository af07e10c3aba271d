"""Splitting of a byte stream into frames."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from agent.kafka.connection.frames import RECEIVE_BYTES, FrameReceiver


class _Socket:
    """Delivers a stream into the receiver's buffers, at most `step` bytes at a time."""

    def __init__(self, frames: list[bytes], step: int) -> None:
        self.stream = b"".join(len(frame).to_bytes(4, "big") + frame for frame in frames)
        self.step = step
        self.frames: list[bytes] = []
        self.shared = memoryview(bytearray(RECEIVE_BYTES))
        self.copied = 0

    def reserve(self, held: int, received: int, length: int) -> int:
        """Grant the whole length, or little more than what has arrived."""
        assert held <= received <= length or held == 0
        return length if self.step % 2 == 0 else min(length, received + self.step)

    def run(self) -> None:
        """Deliver everything."""
        receiver = FrameReceiver(
            self.shared,
            max_frame_bytes=2**20,
            reserve=self.reserve,
            has_room=lambda: self.step % 2 == 0,
            deliver=lambda frame: self.frames.append(bytes(frame)),
        )
        position = 0
        while position < len(self.stream):
            buffer = receiver.buffer()
            count = min(len(buffer), self.step, len(self.stream) - position)
            buffer[:count] = self.stream[position : position + count]
            self.copied += count if buffer.obj is self.shared.obj else 0
            position += count
            receiver.received(count)
        assert receiver._frame is None
        assert not receiver._head


@given(st.lists(st.sampled_from([8, 100, 5_000, 40_000, 300_000]), max_size=8), st.integers(1000, 400_000))
def test_frames_are_delivered_unchanged(sizes: list[int], step: int) -> None:
    """For any sizes, and any split of the stream."""
    frames = [bytes([number + 1]) * size for number, size in enumerate(sizes)]
    socket = _Socket(frames, step)
    socket.run()
    assert socket.frames == frames


def test_large_frames_are_hardly_copied() -> None:
    """After the first one, only the first bytes of each pass through the shared buffer."""
    frames = [bytes([number]) * 160_000 for number in range(10)]
    socket = _Socket(frames, step=RECEIVE_BYTES)
    socket.run()
    assert socket.frames == frames
    assert socket.copied <= RECEIVE_BYTES + 10 * 2048
