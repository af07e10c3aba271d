"""Who a client is: Kafka's principals, and what an agent knows of the client of a connection."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from typing_extensions import override

if TYPE_CHECKING:
    from collections.abc import Callable


class Principal(NamedTuple):
    """Kafka's `KafkaPrincipal`: a type, which is `User` for all clients, and a name."""

    type: str
    name: str

    @override
    def __str__(self) -> str:
        return f"{self.type}:{self.name}"


ANONYMOUS = Principal("User", "ANONYMOUS")
"""The principal of a client that a listener does not authenticate."""


# Not frozen: authentication changes the principal of an open connection.
@dataclass(slots=True)
class Client:
    """The client of one connection. `host` is its address without the port; `listener` is the name.

    `mute` lets the connection receive nothing for some seconds.
    """

    host: str
    listener: str
    principal: Principal = ANONYMOUS
    mute: Callable[[float], None] | None = field(default=None, repr=False, compare=False)
