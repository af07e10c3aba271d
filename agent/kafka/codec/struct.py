"""A struct of the protocol, independent of its version."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from typing_extensions import override


class Struct:
    """One struct of a message: named values, with the fields of every version.

    A struct that was read has the fields of every version. Fields that the message's version lacks have their
    defaults. A struct to write needs only the values that differ from the defaults. It may have fields that
    the version lacks, so that a handler builds one response for all versions. The writer rejects a name that
    no version has.

    Names are kio's: Kafka's in snake case, but `throttle_time` for throttleTimeMs. Durations and timestamps
    are integers in milliseconds, error codes are integers (kio's `ErrorCode` is one), arrays are any
    sequence, and the zero UUID is None.
    """

    __slots__ = ("__dict__",)

    def __init__(self, **values: Any) -> None:  # noqa: ANN401  # the schema determines the types
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

    __hash__ = None  # type: ignore[assignment]  # it is mutable

    @override
    def __repr__(self) -> str:
        return f"Struct({', '.join(f'{name}={value!r}' for name, value in self.__dict__.items())})"
