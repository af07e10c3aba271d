"""Who a client is: Kafka's principals, and what an agent knows of the client of a connection."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from typing_extensions import override


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
    """The client of one connection. `host` is its address without the port; `listener` is the name."""

    host: str
    listener: str
    principal: Principal = ANONYMOUS
