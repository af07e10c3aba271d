"""Stored configuration of consumer groups and of brokers, which exists independently of them.

A topic's configuration is a column of the topic's row: `catalog.topics.repository` reads and changes it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

from psycopg.types.json import Jsonb

from catalog.config.values import BrokerConfig, GroupConfig
from catalog.database.sql_files import load_queries
from catalog.errors import InvalidConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from catalog.database.pool import Database, Transaction

_SQL = load_queries("group_configs")
_BROKER_SQL = load_queries("broker_configs")
Changes: TypeAlias = "Callable[[GroupConfig], Mapping[str, str | None]]"
MAX_CONFIGURED_GROUPS: Final = 10_000
"""Maximum number of groups with explicit settings. Every coordinator keeps all of them in memory."""
BrokerChanges: TypeAlias = "Callable[[BrokerConfig], Mapping[str, str | None]]"
MAX_CONFIGURED_BROKERS: Final = 10_000
ALL_BROKERS: Final = ""
"""Name of the configuration that holds for every broker that does not set the same name itself."""


class GroupConfigs:
    """Explicit configuration of consumer groups; part of `Catalog`, thread-safe."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def list(self) -> dict[str, GroupConfig]:
        """Return the configuration of every group that has explicit settings, by group id."""
        rows = self._database.read("group_configs.list", _SQL["list_group_configs"])
        return {row.group_id: GroupConfig.from_stored(row.config) for row in rows}

    def get(self, group_id: str) -> GroupConfig:
        """Return a group's configuration; it is empty if nothing was set."""
        rows = self._database.read("group_configs.get", _SQL["find_group_config"], {"group_id": group_id})
        return GroupConfig.from_stored(rows[0].config) if rows else GroupConfig()

    def alter(
        self,
        group_id: str,
        changes: Changes,
        check: Callable[[GroupConfig], None] | None = None,
    ) -> GroupConfig:
        """Apply the changes that `changes` derives from the current configuration; return the new one.

        None resets a setting to its default; settings that `changes` does not name stay. `check` receives
        the new configuration and raises to reject it. InvalidConfigError: a setting or value is invalid, or
        too many groups have explicit settings.
        """

        def work(transaction: Transaction) -> GroupConfig:
            rows = transaction.rows(_SQL["lock_group_config"], {"group_id": group_id})
            before = GroupConfig.from_stored(rows[0].config)
            config = before.with_changes(changes(before))
            if check is not None:
                check(config)
            params = {"group_id": group_id, "config": Jsonb(config.as_strings())}
            query = _SQL["update_group_config"] if config.explicit else _SQL["delete_group_config"]
            transaction.send(query, params)
            if transaction.rows(_SQL["count_group_configs"])[0].groups > MAX_CONFIGURED_GROUPS:
                raise InvalidConfigError(
                    f"{MAX_CONFIGURED_GROUPS} groups have explicit settings",
                    setting="consumer",
                    remedy="reset the settings of groups that are no longer used",
                )
            return config

        return self._database.transact("group_configs.alter", work)


class BrokerConfigs:
    """Explicit configuration of brokers by node id, and of all brokers; part of `Catalog`, thread-safe."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def find(self, names: Collection[str]) -> dict[str, BrokerConfig]:
        """Return the configuration of each named broker; it is empty if nothing was set."""
        params = {"broker_names": list(names)}
        rows = self._database.read("broker_configs.find", _BROKER_SQL["find_broker_configs"], params)
        found = {row.broker_name: BrokerConfig.from_stored(row.config) for row in rows}
        return {name: found.get(name, BrokerConfig()) for name in names}

    def alter(self, name: str, changes: BrokerChanges) -> BrokerConfig:
        """Apply the changes that `changes` derives from the current configuration; return the new one.

        None resets a setting. InvalidConfigError: a setting or value is invalid, or too many brokers have
        explicit settings.
        """

        def work(transaction: Transaction) -> BrokerConfig:
            rows = transaction.rows(_BROKER_SQL["lock_broker_config"], {"broker_name": name})
            before = BrokerConfig.from_stored(rows[0].config)
            config = before.with_changes(changes(before))
            params = {"broker_name": name, "config": Jsonb(config.as_strings())}
            update, delete = _BROKER_SQL["update_broker_config"], _BROKER_SQL["delete_broker_config"]
            transaction.send(update if config.explicit else delete, params)
            if _configured_brokers(transaction) > MAX_CONFIGURED_BROKERS:
                transaction.send(_BROKER_SQL["forget_broker_configs"])
                if _configured_brokers(transaction) > MAX_CONFIGURED_BROKERS:
                    raise InvalidConfigError(
                        f"{MAX_CONFIGURED_BROKERS} brokers have explicit settings",
                        setting="broker",
                        remedy="set the default of all brokers instead",
                    )
            return config

        return self._database.transact("broker_configs.alter", work)


def _configured_brokers(transaction: Transaction) -> int:
    return int(transaction.rows(_BROKER_SQL["count_broker_configs"])[0].brokers)
