"""Print the kernels that compaction loads after the warm-up. Run it in a separate process.

python -m tests.spark_jobs.kernels_after_warm_up <empty directory>
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

from catalog.model import PartitionId
from object_format.codecs.codec import Codec
from object_store.local.store import LocalStore
from spark_jobs.shuffle.plan import plan_shuffle
from spark_jobs.shuffle.shares import ShareSizes
from spark_jobs.warm_up import warm_up
from tests.agent.loop_kernels import kernels
from tests.spark_jobs.compaction_harness import CompactionHarness
from tests.spark_jobs.reference_log import BatchToWrite, batch
from tests.spark_jobs.shuffle.shuffle_in_memory import run_in_memory


def batches(rng: random.Random) -> list[BatchToWrite]:
    made = []
    for _ in range(rng.randint(1, 30)):
        pairs = [
            (b"%d" % rng.randrange(500), rng.choice([None, b"v" * rng.randrange(300)]))
            for _ in range(rng.randint(1, 40))
        ]
        made.append(batch(*pairs, codec=rng.choice(list(Codec))))
    return made


def work(directory: Path) -> None:
    """Compact logs of every policy by both plans."""
    rng = random.Random(7)
    harness = CompactionHarness(directory)
    topics = [harness.topic(policy) for policy in ("compact", "delete", "compact,delete")]
    for plan in ("task", "shuffle", "task"):
        for _ in range(4):
            harness.log.ingest({PartitionId(each, 0): batches(rng) for each in topics})
        if plan == "task":
            harness.compact(table_bytes=1 << 14)
            continue
        spec = harness.log.job()
        shuffle = plan_shuffle(spec, ShareSizes(share_bytes=1 << 14, min_shares=2, min_piece_bytes=1 << 13))
        result = run_in_memory(spec, shuffle, lambda: LocalStore(directory, harness.ids), harness.ids)
        harness.log.publish(spec, result)
        harness.log.check()


def main(directory: Path) -> None:
    """Print the names of kernels that were not loaded, or not for the types that the work needs."""
    warm_up(directory / "warm")
    before = kernels()
    work(directory / "work")
    for name, count in kernels().items():
        if before.get(name, 0) != count and not name.startswith("tests."):
            sys.stdout.write(f"{name} {before.get(name, 0)} {count}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
