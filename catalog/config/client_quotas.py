"""Stored client quotas, which every agent follows.

Each change sets a new version. An agent asks for the quotas with the version that it knows, so that a poll
without a change returns nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from psycopg.types.json import Jsonb

from catalog.config.quota_entities import EntityType, QuotaEntity
from catalog.database.sql_files import load_queries
from catalog.errors import InvalidQuotaError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from uuid import UUID

    from catalog.database.pool import Database, Transaction

_SQL = load_queries("client_quotas")
MAX_ENTITIES: Final = 10_000
"""Maximum number of entities with quotas. Every agent keeps all of them in memory."""

Quotas: TypeAlias = "Mapping[QuotaEntity, Mapping[str, float]]"
"""The quotas of each entity by their keys."""


class QuotaSnapshot(NamedTuple):
    """All quotas as of a version, which is None before the first change."""

    version: UUID | None
    quotas: Quotas


class ClientQuotas:
    """Quotas of users, client ids and IP addresses; part of `Catalog`, thread-safe."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def list(self) -> Quotas:
        """Return the quotas of all entities."""
        found = self.changed_since(None)
        return {} if found is None else found.quotas

    def changed_since(self, version: UUID | None) -> QuotaSnapshot | None:
        """Return all quotas if their version is not `version`, or None."""
        params = {"known": version, "limit": MAX_ENTITIES}
        rows = self._database.read("client_quotas.changed_since", _SQL["read_client_quotas"], params)
        if not rows:
            return None
        return QuotaSnapshot(
            rows[0].version, {_entity(row.entity): row.quotas for row in rows if row.entity is not None}
        )

    def alter(self, changes: Mapping[QuotaEntity, Mapping[str, float | None]]) -> None:
        """Change quotas of each entity, all or none; None removes one.

        The changes come from `checked_changes`. InvalidQuotaError: too many entities have quotas.
        """

        def work(transaction: Transaction) -> None:
            transaction.send(_SQL["change_version"], {"version": self._database.new_uuid()})
            entities = [_json(entity) for entity in changes]
            rows = transaction.rows(_SQL["find_client_quotas"], {"entities": entities})
            before: Quotas = {_entity(row.entity): row.quotas for row in rows}
            after = {entity: _changed(before.get(entity, {}), values) for entity, values in changes.items()}
            kept = {entity: quotas for entity, quotas in after.items() if quotas}
            params = {
                "entities": [_json(each) for each in kept],
                "quotas": [Jsonb(each) for each in kept.values()],
            }
            transaction.send(_SQL["put_client_quotas"], params)
            gone = [_json(each) for each in after if each not in kept]
            transaction.send(_SQL["delete_client_quotas"], {"entities": gone})
            if transaction.rows(_SQL["count_client_quotas"])[0].entities > MAX_ENTITIES:
                raise InvalidQuotaError(
                    f"{MAX_ENTITIES} users, client ids and IP addresses have quotas",
                    remedy="remove those that are no longer used, or set a default",
                )

        if changes:
            self._database.transact("client_quotas.alter", work)


def _changed(before: Mapping[str, float], changes: Mapping[str, float | None]) -> dict[str, float]:
    after = {**before, **changes}
    return {key: value for key, value in after.items() if value is not None}


def _json(entity: QuotaEntity) -> Jsonb:
    return Jsonb({kind: name for kind, name in zip(EntityType, entity, strict=True) if name is not None})


def _entity(stored: Mapping[str, str]) -> QuotaEntity:
    return QuotaEntity(*(stored.get(kind) for kind in EntityType))
