"""One log of each engine, which get the same operations and are compared, file by file."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from core.errors import SiltstoneError
from core.ids import SeededIds
from local_tier.cleaner.cleaner import NO_LIMIT, Cleaner, Throttler
from local_tier.cleaner.log_to_clean import LogToClean
from local_tier.config import LogConfig
from local_tier.producers.producer_state_entry import AppendOrigin
from object_format.codecs.codec import Codec
from object_format.dedupe import KeyTable
from object_format.record_batch.headers import iter_headers
from object_format.record_batch.records import decode_batches, encode_batch
from tests.local_tier.batches import marker
from tests.local_tier.interchange.kafka_engine import KafkaError, KafkaLog, State, state_of
from tests.local_tier.logs import LogHarness, crash

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from local_tier.log.unified_log import UnifiedLog
    from tests.local_tier.interchange.kafka_engine import KafkaEngine

CONFIG = LogConfig(
    segment_bytes=1_400,
    segment_index_bytes=12 * 40,
    index_interval_bytes=150,
    retention_ms=-1,
    retention_bytes=8_000,
    message_timestamp_after_max_ms=2**63 - 1,
)
COMPACTED = replace(CONFIG, compact=True, delete=False, retention_bytes=-1)
_CHECKED_FROM = 21  # the bytes of a batch before are not covered by its checksum
PLAIN, IDEMPOTENT, TRANSACTIONAL = -1, 7, 8


@dataclass
class Producer:
    """A producer's next sequence number, and whether its transaction is open."""

    sequence: int = 0
    is_open: bool = False


class Pair:
    """The two logs. `exchange` lets each engine continue with the other's directory."""

    def __init__(self, kafka: KafkaEngine, root: Path, config: LogConfig, seed: int) -> None:
        self.kafka = kafka
        self.config = config
        self.chance = random.Random(seed)
        self.harnesses = [LogHarness(root / "one"), LogHarness(root / "two")]
        self.harnesses[1].clock = self.harnesses[0].clock
        self.producers = {IDEMPOTENT: Producer(), TRANSACTIONAL: Producer()}
        self.epoch = 0
        self.history: list[str] = []
        self.ours: UnifiedLog
        self.theirs: KafkaLog
        self.open(clean=False)

    @property
    def _now_ms(self) -> int:
        return self.harnesses[0].clock.now_ms()

    def open(self, *, clean: bool, log_start_offset: int = 0) -> None:
        """Open the first directory with our engine and the second with Kafka's."""
        self.kafka.ask("time", self._now_ms)
        self.ours = self.harnesses[0].open(self.config, clean=clean, log_start_offset=log_start_offset)
        self.theirs = self.kafka.open(
            self.harnesses[1].directory, self.config, clean=clean, log_start_offset=log_start_offset
        )

    def both(self, what: str, ours: Callable[[], object], *words: object, compare: bool = True) -> None:
        """Run an operation on both logs: both must fail, or both must succeed with the same state."""
        self.history.append(what)
        errors = []
        for call in (ours, lambda: self.theirs.ask(*map(str, words))):
            try:
                call()
            except (SiltstoneError, KafkaError) as error:
                errors.append(error)
        assert len(errors) in {0, 2}, f"{errors} after {self.history[-12:]}"
        if compare:
            self.compare()

    def compare(self) -> None:
        """Compare the states of the logs."""
        ours, theirs = state_of(self.ours), self.theirs.state()
        if self.config.compact:  # batches that lost records have other base timestamps, so other sizes
            for state in (ours, theirs):
                state["segments"] = [base for base, _ in state["segments"]]
        differences = {name: (ours[name], theirs[name]) for name in ours if ours[name] != theirs[name]}
        assert not differences, f"ours and Kafka's: {differences} after {self.history[-12:]}"

    def append(self) -> None:
        """Append batches of a random producer."""
        producer_id = self.chance.choice([PLAIN, PLAIN, IDEMPOTENT, TRANSACTIONAL])
        count = self.chance.randint(1, 4)
        producer = self.producers.get(producer_id)
        ids = (-1, -1, -1) if producer is None else (producer_id, 0, producer.sequence)
        data = encode_batch(
            [self._now_ms + self.chance.randint(-50, 50) for _ in range(count)],
            [b"%d" % self.chance.randint(0, 9) for _ in range(count)],
            [
                self.chance.choice([None, self.chance.randbytes(self.chance.randint(0, 120))])
                for _ in range(count)
            ],
            codec=self.chance.choice([Codec.NONE, Codec.NONE, Codec.GZIP, Codec.ZSTD]),
            producer=ids,
            is_transactional=producer_id == TRANSACTIONAL,
        )
        if producer is not None:
            producer.sequence += count
            producer.is_open = producer_id == TRANSACTIONAL
        self._append(f"append {producer_id} x{count}", data, "CLIENT")

    def end_transaction(self) -> None:
        """Commit or abort the open transaction."""
        if self.producers[TRANSACTIONAL].is_open:
            self.producers[TRANSACTIONAL].is_open = False
            data = marker(
                0, producer=(TRANSACTIONAL, 0), abort=self.chance.random() < 0.5, timestamp=self._now_ms
            )
            self._append("marker", data, "COORDINATOR")

    def _append(self, what: str, data: bytes, origin: str) -> None:
        def ours() -> None:
            self.ours.append_as_leader(bytearray(data), self.epoch, origin=AppendOrigin[origin])

        self.both(what, ours, "append", self.epoch, origin, data.hex())

    def advance(self) -> None:
        """Let time pass, and let background work run."""
        self.harnesses[0].clock.advance(self.chance.choice([1, 70]))
        self.harnesses[0].scheduler.run()
        self.harnesses[1].scheduler.run()
        self.kafka.ask("time", self._now_ms)

    def new_epoch(self) -> None:
        """Continue in a higher leader epoch."""
        self.epoch += self.chance.randint(1, 3)

    def roll(self) -> None:
        self.both("roll", self.ours.roll, "roll")

    def flush(self) -> None:
        self.both("flush", self.ours.flush, "flush")

    def advance_watermark(self) -> None:
        offset = self.chance.randint(self.ours.high_watermark, self.ours.log_end_offset)
        self.both(f"watermark {offset}", lambda: self.ours.update_high_watermark(offset), "watermark", offset)

    def advance_start(self) -> None:
        # Within an open transaction, Kafka's last stable offset would be below its log start offset.
        offset = self.chance.randint(0, self.ours.last_stable_offset)
        self.both(
            f"start {offset}", lambda: self.ours.maybe_increment_log_start_offset(offset), "start", offset
        )

    def retain(self) -> None:
        self.both("retain", self.ours.delete_old_segments, "retain")

    def truncate(self) -> None:
        """Truncate above the high watermark, as a follower does."""
        offset = self.chance.randint(self.ours.high_watermark, self.ours.log_end_offset)
        watermark = self.ours.high_watermark
        what = f"truncate {offset}"
        self.both(what, lambda: self.ours.truncate_to(offset), "truncate", offset, compare=False)
        # Kafka takes replayed markers for unreplicated ones until the next high watermark.
        self.both("watermark", lambda: self.ours.update_high_watermark(watermark), "watermark", watermark)
        self._forget_lost_batches()

    def _forget_lost_batches(self) -> None:
        known = self.ours.known_producers()
        for producer_id, producer in self.producers.items():
            entry = known.get(producer_id)
            has_batches = entry is not None and bool(entry.batches)
            producer.sequence = entry.last_sequence + 1 if entry is not None and has_batches else 0
            producer.is_open = entry is not None and entry.current_txn_first_offset is not None

    def clean(self) -> None:
        """Clean everything below the active segment that is stable, with both cleaners."""
        end = min(self.ours.last_stable_offset, self.ours.active_segment.base_offset)
        start = self.ours.log_start_offset
        segments = self.ours.segments_between(0, end)
        end = max((each.base_offset for each in self.ours.segments if each.base_offset <= end), default=0)
        if not segments or end <= start:
            return
        cleaner = Cleaner(
            file_system=self.harnesses[0].fs,
            table=KeyTable(1 << 16),
            window_bytes=1 << 16,
            throttler=Throttler(self.harnesses[0].clock, NO_LIMIT),
            clock=self.harnesses[0].clock,
            ids=SeededIds(0, self.harnesses[0].clock),
            check_done=lambda _: None,
        )
        cleaner.clean(
            LogToClean(
                log=self.ours,
                first_dirty_offset=start,
                first_uncleanable_offset=end,
                clean_bytes=0,
                cleanable_bytes=1,
                must_clean=True,
            )
        )
        self.theirs.ask("clean", start, end)
        self.history.append(f"clean {start} {end}")

    def close(self) -> None:
        self.ours.flush(force_active=True)
        self.ours.close()
        self.theirs.ask("flush")
        self.theirs.ask("close")

    def crash(self) -> None:
        crash(self.ours)
        self.theirs.ask("crash")

    def exchange(self) -> None:
        """Give each engine the directory that the other one has used."""
        self.harnesses.reverse()

    def reopen(self, *, clean: bool) -> None:
        """Close or crash both logs, exchange the directories, and open them again."""
        start, watermark = self.ours.log_start_offset, self.ours.high_watermark
        self.history.append("close" if clean else "crash")
        if clean:
            self.close()
            self.compare_files()
        else:
            self.crash()
            self.damage()
        self.exchange()
        self.open(clean=clean, log_start_offset=start)
        self.compare()
        self._forget_lost_batches()
        if not clean:
            # As at the start of an agent. Below the end, Kafka does not know which markers were not
            # replicated: it loads a snapshot, while our recovery has read the batches.
            watermark = self.ours.log_end_offset
        self.both("watermark", lambda: self.ours.update_high_watermark(watermark), "watermark", watermark)

    def damage(self) -> None:
        """Damage both directories in the same way, as a crash of the machine may."""
        kind = self.chance.choice(["none", "torn", "flipped", "zeros", "index", "snapshots"])
        self.history.append(f"damage: {kind}")
        amount, place = self.chance.randint(1, 90), self.chance.random()
        for harness in self.harnesses:
            logs = sorted(harness.directory.glob("*.log"))
            path = logs[-1]
            data = bytearray(path.read_bytes())
            if kind == "torn" and data:
                path.write_bytes(data[: max(0, len(data) - amount)])
            elif kind == "flipped" and data:
                positions = [position for position, _ in iter_headers(bytes(data))]
                start = positions[int(len(positions) * place)]
                data[start + _CHECKED_FROM + amount % 20] ^= 1
                path.write_bytes(data)
            elif kind == "zeros":
                path.write_bytes(data + bytes(amount))
            elif kind == "index":
                for each in harness.directory.glob("*index"):
                    each.unlink()
            elif kind == "snapshots":
                for each in harness.directory.glob("*.snapshot"):
                    each.unlink()

    def compare_files(self) -> None:
        """Compare the closed directories byte by byte."""
        found = [files_of(harness.directory) for harness in self.harnesses]
        ours, theirs = ({*each} for each in found)
        assert ours == theirs, f"only ours: {ours - theirs}, Kafka's: {theirs - ours}; {self.history[-20:]}"
        for name, content in found[0].items():
            assert content == found[1][name], f"{name} differs after {self.history[-20:]}"

    def compare_records(self) -> None:
        """Compare the batches and records of all segments."""
        ours, theirs = (contents_of(harness.directory) for harness in self.harnesses)
        assert ours == theirs, self.history


def files_of(directory: Path) -> dict[str, bytes]:
    """Return the files of a log, by name.

    Snapshots have producers in any order. Of empty files, only those of segments and snapshots count: Kafka
    creates an empty epoch checkpoint, and the indexes of an empty segment at their first use.
    """
    return {
        path.name: b"" if path.suffix == ".snapshot" else path.read_bytes()
        for path in directory.iterdir()
        if path.name != "partition.metadata"
        and not path.name.endswith(".deleted")
        and (path.stat().st_size or path.suffix in {".log", ".snapshot"})
    }


def contents_of(directory: Path) -> list[object]:
    """Return the batches' offsets, and the records, of all segments."""
    found: list[object] = []
    for path in sorted(directory.glob("*.log")):
        data = path.read_bytes()
        for _, header in iter_headers(memoryview(data)):
            last = header.base_offset + header.last_offset_delta
            found.append((header.base_offset, last, header.partition_leader_epoch, header.producer_id))
        for columns in decode_batches(data, control=True):
            found += [(each.offset, each.timestamp, each.key, each.value) for each in columns.records()]
    return found


__all__ = ["COMPACTED", "CONFIG", "Pair", "State"]
