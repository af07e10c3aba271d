"""A struct of the protocol, whatever its version."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from typing_extensions import override


class Struct:
    """Named values: one struct of a message, with the fields of every version.

    As read, it has every field that any version of its message knows; those that the present version does
    not carry have their defaults. To be written, it needs only what differs from the defaults, and may have
    fields that the present version does not carry: a handler answers all versions with one construction. A
    name that no version knows is refused by the writer.

    Names are kio's (snake case of Kafka's, `throttle_time` for throttleTimeMs). Durations and points in time
    are integers of milliseconds, errors integers (kio's `ErrorCode` is one), arrays any sequence, the zero
    UUID is None.
    """

    __slots__ = ("__dict__",)

    def __init__(self, **values: Any) -> None:  # noqa: ANN401  # what a field holds is the schema's affair
        self.__dict__.update(values)

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:  # noqa: ANN401  # as above
            ...

        @override
        def __setattr__(self, name: str, value: Any) -> None:  # as above
            ...

    @override
    def __eq__(self, other: object) -> bool:
        return isinstance(other, Struct) and self.__dict__ == other.__dict__

    __hash__ = None  # type: ignore[assignment]  # it can be changed

    @override
    def __repr__(self) -> str:
        return f"Struct({', '.join(f'{name}={value!r}' for name, value in self.__dict__.items())})"
