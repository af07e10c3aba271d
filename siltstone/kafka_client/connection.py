"""Kafka client connections of the commands and the demo: properties, first contact, translation of errors.

The client is librdkafka, through `confluent-kafka`. Its own log is only for debugging; users get errors of
`core.errors` with a remedy.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient

from core.errors import FatalError, InvalidInputError, NotFoundError, RetryableError, SiltstoneError
from siltstone.interrupts import defer_signals

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from core.clock import Clock

_REACH_SECONDS = 10.0
_STEP_SECONDS = 0.5
_HOPELESS = frozenset(
    {KafkaError._ALL_BROKERS_DOWN, KafkaError._AUTHENTICATION, KafkaError._SSL, KafkaError._FATAL}  # noqa: SLF001 - its public names for errors of the client's own
)
_UNKNOWN = frozenset(
    {
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError._UNKNOWN_TOPIC,  # noqa: SLF001 - as above
        KafkaError._UNKNOWN_PARTITION,  # noqa: SLF001 - as above
    }
)
_INVALID_NAME = KafkaError.TOPIC_EXCEPTION
# The resource of a denied request in the options of `siltstone acls add`, and the operation if it is not that
# of the topic. A principal gets a producer id if it may write to some topic.
_DENIED = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED: ("--topic {topic}", None),
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: ("--topic {topic}", None),
    KafkaError.GROUP_AUTHORIZATION_FAILED: ("--group {group}", "Read"),
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: ("--transactional-id {transactional_id}", "Write"),
}
Client = TypeVar("Client", Producer, Consumer, AdminClient)


class BrokerUnavailableError(RetryableError):
    """No broker could be reached."""


class _ClientLog:
    """Logger for librdkafka's own messages."""

    _logger = logging.getLogger("librdkafka")

    def log(self, level: int, message: str, *arguments: object) -> None:
        """Log a message for debugging, at any level; what users must know arrives as an error."""
        del level
        self._logger.debug(message, *arguments)


@dataclass(frozen=True, slots=True)
class Purpose:
    """The use that a client makes of a topic, to name missing rights; `operation` is Read or Write."""

    topic: str
    operation: str
    group: str = "GROUP"
    transactional_id: str = "ID"

    def missing_right(self, code: int) -> str | None:
        """Return the remedy for an error of authorization; None for any other error."""
        if code not in _DENIED:
            return None
        resource, operation = _DENIED[code]
        named = resource.format(topic=self.topic, group=self.group, transactional_id=self.transactional_id)
        return (
            f"let an administrator run: siltstone acls add {named} --allow-principal User:NAME "
            f"--operation {operation or self.operation}"
        )


@dataclass(slots=True)
class ClientErrors:
    """Errors that a client has reported through its callback.

    `cause` is the last specific error, `hopeless` means that retrying will not help, `login_failed` that a
    broker rejected the login, and `fatal` is an error that the client cannot recover from.
    """

    cause: str = ""
    hopeless: bool = False
    login_failed: bool = False
    fatal: KafkaError | None = None

    def note(self, error: KafkaError) -> None:
        """Record an error; this is the client's `error_cb`."""
        if error.fatal():
            self.fatal = error
        if error.code() in _HOPELESS:
            self.hopeless = True
        if error.code() == KafkaError._AUTHENTICATION:  # noqa: SLF001 - as above
            self.login_failed = True
        if error.code() != KafkaError._ALL_BROKERS_DOWN or not self.cause:  # noqa: SLF001 - as above
            self.cause = error.str()


def parse_properties(files: Iterable[Path], options: Iterable[str]) -> dict[str, str]:
    """Return the client properties of files and of options, each `name=value`; later ones override.

    Empty lines of a file and lines that start with `#` are ignored. Raises InvalidInputError.
    """
    found: dict[str, str] = {}
    for file in files:
        try:
            lines = file.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as failure:
            reason = failure.strerror if isinstance(failure, OSError) else "it is not UTF-8"
            raise InvalidInputError(f"client properties in {file} cannot be read: {reason}") from None
        for number, line in enumerate(lines, start=1):
            if line.strip() and not line.lstrip().startswith("#"):
                _add_property(found, line, f"line {number} of {file}")
    for option in options:
        _add_property(found, option, "-X")
    return found


def _add_property(found: dict[str, str], text: str, where: str) -> None:
    name, separator, value = text.partition("=")
    if not separator or not name.strip():
        raise InvalidInputError(  # without the text, which may contain a password
            f"a client property ({where}) is not NAME=VALUE",
            remedy="write it as linger.ms=50; librdkafka's CONFIGURATION.md lists the properties",
        )
    found[name.strip()] = value.strip()


def connect(
    make: Callable[..., Client], configuration: Mapping[str, Any], errors: ClientErrors | None = None
) -> Client:
    """Return a client of librdkafka; `errors` records the errors that it reports while it is polled."""
    try:
        # The constructor would report an exception of a signal handler as a wrong property.
        with defer_signals():
            return make(
                {**configuration, "error_cb": (errors or ClientErrors()).note},
                logger=_ClientLog(),
            )
    except (KafkaException, TypeError, ValueError) as failure:
        message = failure.args[0].str() if isinstance(failure, KafkaException) else str(failure)
        raise InvalidInputError(
            f"the Kafka client rejects its configuration: {message}",
            remedy="correct the property; librdkafka's CONFIGURATION.md lists the properties",
        ) from None


def fetch_partitions(
    client: Producer | Consumer, purpose: Purpose, errors: ClientErrors, clock: Clock
) -> list[int]:
    """Return the partitions of the purpose's topic; this is the first contact with a broker.

    Raises NotFoundError for an unknown topic, and BrokerUnavailableError if no broker can be reached.
    """
    end = clock.monotonic() + _REACH_SECONDS
    tries = 0
    while True:
        tries += 1
        try:
            found = client.list_topics(purpose.topic, timeout=_STEP_SECONDS).topics[purpose.topic]
        except KafkaException:
            client.poll(0)  # lets the client report the cause
            # Count attempts, too: a process that was suspended has tried for less time than the clock says.
            if errors.hopeless or (clock.monotonic() >= end and tries * _STEP_SECONDS >= _REACH_SECONDS):
                raise _unavailable(errors) from None
            continue
        if found.error is not None:
            raise to_siltstone_error(found.error, purpose)
        return sorted(found.partitions)


def _unavailable(errors: ClientErrors) -> BrokerUnavailableError:
    if errors.login_failed:
        return BrokerUnavailableError(
            f"a Kafka broker rejects the login: {errors.cause}",
            remedy="correct sasl.mechanism, sasl.username and sasl.password in the client's properties",
        )
    return BrokerUnavailableError(
        f"no Kafka broker can be reached: {errors.cause or 'no response'}",
        remedy="check that an agent runs there and that its listener has the client's security.protocol, "
        "or name another: --bootstrap-server HOST:PORT",
    )


def to_siltstone_error(error: KafkaError | KafkaException, purpose: Purpose) -> SiltstoneError:
    """Translate an error of the client or a broker into the error class that says what to do about it."""
    known = error.args[0] if isinstance(error, KafkaException) else error
    topic = purpose.topic
    if known.code() in _UNKNOWN:
        return NotFoundError(
            f"topic {topic!r} or the requested partition does not exist",
            remedy=f"see: siltstone topics list; or create it: siltstone topics create {topic}",
        )
    message = f"{known.name()}: {known.str()}"
    right = purpose.missing_right(known.code())
    if right is not None:
        return InvalidInputError(f"topic {topic!r}: {message}", remedy=right)
    if known.fatal():
        return FatalError(
            f"the Kafka client stopped with a fatal error: {message}", remedy="run the command again"
        )
    if known.retriable() or known.code() in _HOPELESS:
        return RetryableError(f"topic {topic!r}: {message}", remedy="retry later")
    remedy = "use 1 to 249 of a-z, A-Z, 0-9, '.', '_' and '-'" if known.code() == _INVALID_NAME else None
    return InvalidInputError(f"topic {topic!r}: {message}", remedy=remedy)
