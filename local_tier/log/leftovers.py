"""What a crash leaves in a log's directory: each suffix is resolved before segments are looked at.

Source: LogLoader of org.apache.kafka.storage.internals.log; KAFKA-6264. `segment_files` says which order of
steps this takes apart again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from local_tier.files.file_names import CLEANED, DELETED, LOG, SWAP, parse_segment_file
from local_tier.segment.log_file import LogFile
from local_tier.segment.search import end_of_batches

if TYPE_CHECKING:
    from local_tier.log.log_home import LogHome

_log = structlog.get_logger(__name__)


def resolve_leftovers(home: LogHome) -> None:
    """Finish or undo what was under way: afterwards no file has a suffix.

    `.deleted` goes. `.cleaned` goes, and with it each `.swap` at or behind the first of them: that exchange
    had not come so far that it could be finished. Other `.swap` files are whole: the segments that they
    cover go, and they become segments.
    """
    _delete(home, [name for name in _names(home) if name.endswith(DELETED)])
    cleaned = _with_suffix(home, CLEANED)
    first_cleaned = min(cleaned.values(), default=2**63)
    swaps = _with_suffix(home, SWAP)
    _delete(home, [name for name, offset in swaps.items() if offset >= first_cleaned])
    _delete(home, list(cleaned))
    whole = {name: offset for name, offset in swaps.items() if offset < first_cleaned}
    if whole:
        _finish_swap(home, whole)
        home.fs.sync_dir(home.directory)


def _finish_swap(home: LogHome, swaps: dict[str, int]) -> None:
    """Delete what the new segments cover, then take their suffix away: of the batches first."""
    logs = [name for name in swaps if name.endswith(LOG + SWAP)]
    spans = [(swaps[name], _end_offset(home, name, swaps[name])) for name in logs]
    first, end = min((s[0] for s in spans), default=2**63), max((s[1] for s in spans), default=-1)
    for name in _names(home):
        parsed = parse_segment_file(name)
        if parsed is not None and first <= parsed[0] < end:
            _delete(home, [name])
    for name in [*logs, *(name for name in swaps if name not in logs)]:
        _log.info("swap_finished", log=home.where, file=name)
        home.fs.rename(home.directory / name, home.directory / name.removesuffix(SWAP))


def _end_offset(home: LogHome, name: str, base_offset: int) -> int:
    file = LogFile(home.fs, home.directory / name)
    try:
        return end_of_batches(file, 0, base_offset)
    finally:
        file.close()


def _names(home: LogHome) -> list[str]:
    return home.fs.list_dir(home.directory)


def _with_suffix(home: LogHome, suffix: str) -> dict[str, int]:
    """Names of segments' files with that suffix, and their base offsets."""
    parsed = {
        name: parse_segment_file(name.removesuffix(suffix)) for name in _names(home) if name.endswith(suffix)
    }
    return {name: found[0] for name, found in parsed.items() if found is not None}


def _delete(home: LogHome, names: list[str]) -> None:
    for name in names:
        _log.info("leftover_deleted", log=home.where, file=name)
        home.fs.unlink(home.directory / name, missing_ok=True)
