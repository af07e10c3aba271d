"""Prototype of a catalog over several PostgreSQL databases: `docs/explanation/sharding.md` is its design."""

from prototypes.sharded_catalog.commits import FilePart, PartialCommitError, ShardedCommits
from prototypes.sharded_catalog.garbage import ShardedGarbage
from prototypes.sharded_catalog.names import ShardedName, parse, sharded_name
from prototypes.sharded_catalog.shards import Shard, Shards, open_shards

__all__ = [
    "FilePart",
    "PartialCommitError",
    "Shard",
    "ShardedCommits",
    "ShardedGarbage",
    "ShardedName",
    "Shards",
    "open_shards",
    "parse",
    "sharded_name",
]
