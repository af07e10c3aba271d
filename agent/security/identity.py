"""Kafka's principals, and the client of a connection."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from typing_extensions import override

if TYPE_CHECKING:
    from collections.abc import Callable

    from agent.security.login import SaslLogin
    from agent.security.rights import Right


class Principal(NamedTuple):
    """Kafka's `KafkaPrincipal`: a type, which is `User` for all clients, and a name."""

    type: str
    name: str

    @override
    def __str__(self) -> str:
        return f"{self.type}:{self.name}"


ANONYMOUS = Principal("User", "ANONYMOUS")
"""The principal of a client that a listener does not authenticate."""


@dataclass(slots=True, eq=False, weakref_slot=True)
class Decisions:
    """Decisions of the authorizer for one principal, by right and resource name.

    They hold for one version of the ACLs, which `index` stands for.
    """

    index: object
    principal: Principal
    by_right: defaultdict[Right, dict[str, bool]] = field(default_factory=lambda: defaultdict(dict))
    any_of: dict[Right, bool] = field(default_factory=dict)


# Not frozen: authentication changes the principal of an open connection.
@dataclass(slots=True)
class Client:
    """The client of one connection. `host` is its address without the port; `listener` is the name.

    `mute` lets the connection receive nothing for some seconds. Only the authorizer uses `decisions`. `login`
    is None unless the listener has SASL.
    """

    host: str
    listener: str
    principal: Principal = ANONYMOUS
    mute: Callable[[float], None] | None = field(default=None, repr=False, compare=False)
    decisions: Decisions | None = field(default=None, compare=False, repr=False)
    login: SaslLogin | None = None
