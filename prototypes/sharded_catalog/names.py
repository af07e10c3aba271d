"""Names of ingestion files that say which shards have a part of the file.

::

    v2/<hash>/ingest/<session>/<file>.seg             sections in the home shard only, as today
    v2/<hash>/ingest/<session>/<file>.<shards>.seg    sections in several shards, or in another one

`<shards>` is a set of shard numbers as bits, in hexadecimal without leading zeros. The agent knows it before
it writes the object. So the name of an object or of a file row names all shards that may ever have a row of
it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

from core.errors import InvalidInputError
from object_store import names
from object_store.names import IngestionName

if TYPE_CHECKING:
    from collections.abc import Collection
    from uuid import UUID

HOME: Final = 0
"""Number of the home shard."""
MAX_SHARDS: Final = 64
_SUFFIX = ".seg"
_SHARDED = re.compile(r"(?P<plain>.*)\.(?P<shards>[1-9a-f][0-9a-f]*)\.seg")


class ShardedName(NamedTuple):
    """Parts of the name of an ingestion file."""

    session_id: UUID
    file_id: UUID
    shards: frozenset[int]


def sharded_name(session_id: UUID, file_id: UUID, shards: Collection[int]) -> str:
    """Return the name of an ingestion file with sections in `shards`."""
    if not shards or not all(0 <= shard < MAX_SHARDS for shard in shards):
        raise InvalidInputError(
            f"a file cannot have the shards {sorted(shards)}",
            remedy=f"use numbers from 0 to {MAX_SHARDS - 1}",
        )
    plain = names.ingestion_name(session_id, file_id)
    if set(shards) == {HOME}:
        return plain
    bits = sum(1 << shard for shard in set(shards))
    return f"{plain.removesuffix(_SUFFIX)}.{bits:x}{_SUFFIX}"


def parse(name: str) -> ShardedName | None:
    """Parse the name of an ingestion file; return None for any other name."""
    match = _SHARDED.fullmatch(name)
    parsed = names.parse(name if match is None else match["plain"] + _SUFFIX)
    if not isinstance(parsed, IngestionName):
        return None
    bits = 1 << HOME if match is None else int(match["shards"], 16)
    shards = frozenset(shard for shard in range(bits.bit_length()) if bits >> shard & 1)
    found = ShardedName(parsed.session_id, parsed.file_id, shards)
    is_ours = max(shards) < MAX_SHARDS and (match is None or shards != {HOME})
    return found if is_ours else None
