"""Settings of consumer groups. They do not need the group: it may come later, and go."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

from psycopg.types.json import Jsonb

from catalog.config.group_config import GroupConfig
from catalog.database.sql_files import load_queries
from catalog.errors import InvalidConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from catalog.database.pool import Database, Transaction

_SQL = load_queries("group_configs")
Changes: TypeAlias = "Callable[[GroupConfig], Mapping[str, str | None]]"
MAX_CONFIGURED: Final = 10_000
"""Groups that may have settings of their own: every coordinator knows all of them."""


class GroupConfigs:
    """What was set for groups; part of `Catalog`, and as safe to use from many threads."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def list(self) -> dict[str, GroupConfig]:
        """The groups that have settings of their own, by name."""
        rows = self._database.read("group_configs.list", _SQL["list_group_configs"])
        return {group_id: GroupConfig.stored(config) for group_id, config in rows}

    def get(self, group_id: str) -> GroupConfig:
        """What was set for a group; nothing where nobody did."""
        params = {"group_id": group_id}
        rows = self._database.read("group_configs.get", _SQL["find_group_config"], params)
        return GroupConfig.stored(rows[0][0]) if rows else GroupConfig()

    def alter(
        self,
        group_id: str,
        changes: Changes,
        check: Callable[[GroupConfig], None] | None = None,
    ) -> GroupConfig:
        """Make changes, which may depend on the settings that the group has then.

        None takes a setting back to its default; what is not named stays as it is.
        `check` is asked about the outcome and raises where that cannot be. InvalidConfigError for what no
        group may have, or when too many groups have settings.
        """

        def work(transaction: Transaction) -> GroupConfig:
            rows = transaction.rows(_SQL["lock_group_config"], {"group_id": group_id})
            before = GroupConfig.stored(rows[0][0])
            config = before.altered(changes(before))
            if check is not None:
                check(config)
            params = {"group_id": group_id, "config": Jsonb(config.as_strings())}
            query = _SQL["keep_group_config"] if config.explicit else _SQL["drop_group_config"]
            transaction.send(query, params)
            if transaction.rows(_SQL["count_group_configs"])[0][0] > MAX_CONFIGURED:
                raise InvalidConfigError(
                    f"{MAX_CONFIGURED} groups have settings of their own",
                    setting="consumer",
                    remedy="take those of groups that are gone back to their defaults",
                )
            return config

        return self._database.transact("group_configs.alter", work)
