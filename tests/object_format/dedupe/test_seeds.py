"""Knowing one seed does not help to attack a job with another seed."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pytest

from object_format.dedupe import KeyTable, SurvivorFinder
from object_format.kernels.dedupe.buckets import bucket_of
from object_format.kernels.dedupe.fingerprints import WORDS, fingerprint_keys
from object_format.record_batch.records import encode_batch

KNOWN = bytes(range(16))
OTHERS = (bytes(16), bytes(range(1, 17)), KNOWN[::-1])
TRIED = 1 << 20
LENGTH = 12
NOW = 1_700_000_000_000


def random_keys() -> npt.NDArray[np.uint8]:
    """Return concatenated random keys."""
    return np.random.default_rng(1).integers(0, 256, TRIED * LENGTH, np.uint8)


def selected(keys: npt.NDArray[np.uint8], indexes: npt.NDArray[np.int64]) -> npt.NDArray[np.uint8]:
    """Return the selected keys."""
    picked: npt.NDArray[np.uint8] = keys.reshape(TRIED, LENGTH)[indexes].reshape(-1)
    return picked


def fingerprints(keys: npt.NDArray[np.uint8], seed: bytes) -> npt.NDArray[np.uint32]:
    """Return a row of words for each key."""
    count = keys.size // LENGTH
    k0, k1 = (np.uint64(int.from_bytes(half, "little")) for half in (seed[:8], seed[8:]))
    words = np.empty(count * WORDS, np.uint32)
    starts = LENGTH * np.arange(count)
    fingerprint_keys(keys, starts, np.full(count, LENGTH), count, k0, k1, words, 0)
    return words.reshape(count, WORDS)


@pytest.fixture(scope="module")
def colliding() -> npt.NDArray[np.uint8]:
    """Return keys that share the first word of their fingerprint with another key under the known seed."""
    keys = random_keys()
    first = fingerprints(keys, KNOWN)[:, 0]
    order = np.argsort(first, kind="stable")
    twins = np.flatnonzero(np.diff(first[order]) == 0)
    both = np.unique(np.concatenate([order[twins], order[twins + 1]]))
    return selected(keys, both)


@pytest.mark.parametrize("seed", OTHERS)
def test_keys_that_collide_under_one_seed_do_not_under_another(
    colliding: npt.NDArray[np.uint8], seed: bytes
) -> None:
    count = colliding.size // LENGTH
    assert count > 100
    assert np.unique(fingerprints(colliding, KNOWN)[:, 0]).size <= count // 2

    assert np.unique(fingerprints(colliding, seed)[:, 0]).size == count


@pytest.mark.parametrize("seed", OTHERS)
def test_keys_of_one_bucket_are_distributed_under_another_seed(seed: bytes) -> None:
    bits = 8
    keys = random_keys()
    crowd = selected(keys, np.flatnonzero(fingerprints(keys, KNOWN)[:, 1] >> (32 - bits) == 7))
    assert {bucket_of(word, 0, bits) for word in fingerprints(crowd, KNOWN)[:20, 1].tolist()} == {7}

    sizes = np.bincount(fingerprints(crowd, seed)[:, 1] >> (32 - bits), minlength=1 << bits)

    mean = crowd.size / LENGTH / (1 << bits)
    assert sizes.size == 1 << bits
    assert sizes.max() < mean + 8 * mean**0.5


def test_colliding_first_words_do_not_make_keys_equal(
    colliding: npt.NDArray[np.uint8],
) -> None:
    """A fingerprint consists of three words."""
    data = colliding.tobytes()
    keys = [data[at:end] for at, end in pairwise(range(0, len(data) + 1, LENGTH))]
    finder = SurvivorFinder(KeyTable(1 << 16), KNOWN, reaches_log_start=True, now_ms=NOW)
    finder.begin_section(unique_keys=False)
    finder.feed(encode_batch([NOW] * len(keys), keys, [b"v"] * len(keys)), offset_shift=0)
    finder.end_section()

    found = finder.finish()

    assert found.records_out == found.keys == len(keys)
