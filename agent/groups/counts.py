"""What is counted of groups."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class GroupCounts:
    """What has happened in the groups since this agent started."""

    rebalances: int = 0
    members_expired: int = 0
    offset_commits: int = 0
    offset_commits_refused: int = 0
    groups_expired: int = 0
    upgrades: int = 0
    downgrades: int = 0
