"""Client quotas: the entities that have them, their keys, and the checks of both (KIP-546).

The checks are those of Kafka's `ClientQuotaControlManager`. In addition, names are bounded and have no NUL,
because the catalog stores them in an index. Host names are not resolved: an entity `ip` is an address.
"""

from __future__ import annotations

import ipaddress
import math
from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple

from typing_extensions import override

from catalog.errors import InvalidQuotaError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

DEFAULT: Final = ""
"""The name of the default entity of a type. Kafka has no empty names."""

MAX_NAME_BYTES: Final = 1000
_LONG_MAX: Final = 2**63 - 1
_INT_MAX: Final = 2**31 - 1
_MAX_FRACTION: Final = 1e-6


class EntityType(StrEnum):
    """Kafka's types of entities."""

    USER = "user"
    CLIENT_ID = "client-id"
    IP = "ip"


class QuotaKey(StrEnum):
    """Kafka's names of quotas."""

    PRODUCER_BYTE_RATE = "producer_byte_rate"
    CONSUMER_BYTE_RATE = "consumer_byte_rate"
    REQUEST_PERCENTAGE = "request_percentage"
    CONTROLLER_MUTATION_RATE = "controller_mutation_rate"
    CONNECTION_CREATION_RATE = "connection_creation_rate"


# The largest value of a quota that must be a whole number.
_WHOLE: Final = {
    QuotaKey.PRODUCER_BYTE_RATE: _LONG_MAX,
    QuotaKey.CONSUMER_BYTE_RATE: _LONG_MAX,
    QuotaKey.CONNECTION_CREATION_RATE: _INT_MAX,
}


class QuotaEntity(NamedTuple):
    """A user, a client id, both, or an IP address.

    Each field is a name, `DEFAULT`, or None if the entity does not have this type.
    """

    user: str | None = None
    client_id: str | None = None
    ip: str | None = None

    @classmethod
    def of(cls, parts: Iterable[tuple[str, str | None]]) -> QuotaEntity:
        """Return the entity of these types and names, None being the default; raise InvalidQuotaError."""
        names: dict[str, str] = {}
        for kind, name in parts:
            if kind in names:
                raise InvalidQuotaError(f"the entity has two names of type {kind}", remedy="give one")
            if kind not in _FIELDS:
                raise InvalidQuotaError(
                    f"there is no entity type {kind!r}", remedy=f"use {', '.join(EntityType)}"
                )
            names[kind] = DEFAULT if name is None else _checked_name(kind, name)
        if not names:
            raise InvalidQuotaError("the entity is empty", remedy="name a user, a client id or an IP address")
        if EntityType.IP in names and len(names) > 1:
            raise InvalidQuotaError(
                "an IP address cannot be combined with a user or a client id", remedy="set two quotas"
            )
        if names.get(EntityType.IP):
            names[EntityType.IP] = _canonical_address(names[EntityType.IP])
        return cls(*(names.get(kind) for kind in EntityType))

    def parts(self) -> Iterator[tuple[EntityType, str | None]]:
        """Yield the types and names, None being the default."""
        for kind, name in zip(EntityType, self, strict=True):
            if name is not None:
                yield kind, name or None

    @override
    def __str__(self) -> str:
        return ", ".join(
            f"default {kind}" if name is None else f"{kind} {name!r}" for kind, name in self.parts()
        )


_FIELDS: Final = frozenset(EntityType)


def checked_changes(
    entity: QuotaEntity, changes: Iterable[tuple[str, float | None]]
) -> dict[str, float | None]:
    """Return the changes of an entity's quotas by key; None removes one. Raise InvalidQuotaError."""
    found: dict[str, float | None] = {}
    for key, value in changes:
        if key in found:
            raise InvalidQuotaError(f"quota {key} is named twice", remedy="name it once")
        found[key] = value
        if value is not None:
            _check(entity, key, value)
    return found


def _check(entity: QuotaEntity, key: str, value: float) -> None:
    of_connections = {str(QuotaKey.CONNECTION_CREATION_RATE)}
    allowed = of_connections if entity.ip is not None else {str(each) for each in QuotaKey} - of_connections
    if key not in allowed:
        raise InvalidQuotaError(
            f"{entity} cannot have a quota {key!r}", remedy=f"use {', '.join(sorted(allowed))}"
        )
    if not value > 0 or math.isinf(value):  # NaN is not positive either
        raise InvalidQuotaError(
            f"quota {key} cannot be {value}", remedy="give a number greater than 0, or remove the quota"
        )
    largest = _WHOLE.get(QuotaKey(key))
    if largest is None:
        return
    if value > largest:
        raise InvalidQuotaError(f"quota {key} cannot be {value}", remedy=f"give at most {largest}")
    if value % 1 > _MAX_FRACTION:
        raise InvalidQuotaError(f"quota {key} cannot be {value}", remedy="give a whole number")


def _checked_name(kind: str, name: str) -> str:
    if not name:
        raise InvalidQuotaError(f"the {kind} is empty", remedy="give a name, or null for the default")
    if "\0" in name or len(name.encode(errors="surrogatepass")) > MAX_NAME_BYTES:
        raise InvalidQuotaError(
            f"the {kind} has more than {MAX_NAME_BYTES} bytes, or a NUL", remedy="give a shorter name"
        )
    return name


def _canonical_address(text: str) -> str:
    """Return the address in the form that sockets report."""
    try:
        return canonical_address(text)
    except ValueError:
        raise InvalidQuotaError(
            f"{text!r} is not an IP address", remedy="give an IPv4 or IPv6 address"
        ) from None


def canonical_address(text: str) -> str:
    """Return an address in its shortest form, an IPv4 address that is mapped to IPv6 as IPv4."""
    address = ipaddress.ip_address(text.partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return str(address)


def matches(entity: QuotaEntity, wanted: Mapping[EntityType, str | None], *, strict: bool) -> bool:
    """Return True if the entity has all wanted names. None stands for any name of this type.

    With `strict` it must not have further types.
    """
    names: dict[EntityType, str | None] = dict(zip(EntityType, entity, strict=True))
    if strict and any(name is not None and kind not in wanted for kind, name in names.items()):
        return False
    return all(
        names[kind] is not None and (name is None or name == names[kind]) for kind, name in wanted.items()
    )
