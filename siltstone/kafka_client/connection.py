"""What the commands and the demo share as Kafka clients: properties, the first contact, errors in our words.

The client is librdkafka, by `confluent-kafka`. What it logs is for debugging alone; what goes wrong reaches
the user as an error that says what to do.
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
Client = TypeVar("Client", Producer, Consumer, AdminClient)


class BrokerUnavailableError(RetryableError):
    """No broker answers where one was looked for."""


class _ClientLog:
    """Where librdkafka's own lines go."""

    _logger = logging.getLogger("librdkafka")

    def log(self, level: int, words: str, *arguments: object) -> None:
        """Whatever their level: what a user must know comes as an error."""
        del level
        self._logger.debug(words, *arguments)


@dataclass(slots=True)
class ClientErrors:
    """What the client has met: a cause, whether no broker is left, and what it cannot recover from."""

    cause: str = ""
    hopeless: bool = False
    fatal: KafkaError | None = None

    def note(self, error: KafkaError) -> None:
        """For the client's `error_cb`."""
        if error.fatal():
            self.fatal = error
        if error.code() in _HOPELESS:
            self.hopeless = True
        if error.code() != KafkaError._ALL_BROKERS_DOWN or not self.cause:  # noqa: SLF001 - as above
            self.cause = error.str()


def parse_properties(files: Iterable[Path], words: Iterable[str]) -> dict[str, str]:
    """Client properties of files, and then of words, each `name=value`; a later one wins.

    Empty lines of a file, and those that begin with `#`, mean nothing. Raises `InvalidInputError`.
    """
    found: dict[str, str] = {}
    for file in files:
        try:
            lines = file.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as failure:
            raise InvalidInputError(f"client properties in {file} cannot be read: {failure}") from None
        for number, line in enumerate(lines, start=1):
            if line.strip() and not line.lstrip().startswith("#"):
                _add_property(found, line, f"line {number} of {file}")
    for word in words:
        _add_property(found, word, "-X")
    return found


def _add_property(found: dict[str, str], text: str, where: str) -> None:
    name, separator, value = text.partition("=")
    if not separator or not name.strip():
        raise InvalidInputError(  # not the text: it may hold a password
            f"a client property ({where}) is not NAME=VALUE",
            remedy="write it as linger.ms=50; librdkafka's CONFIGURATION.md lists them",
        )
    found[name.strip()] = value.strip()


def connect(
    make: Callable[..., Client], configuration: Mapping[str, Any], errors: ClientErrors | None = None
) -> Client:
    """A client of librdkafka; `troubles` takes what it meets while it is polled."""
    try:
        with defer_signals():  # the client's constructor would blame a property for what a handler raises
            return make(
                {**configuration, "error_cb": (errors or ClientErrors()).note},
                logger=_ClientLog(),
            )
    except (KafkaException, TypeError, ValueError) as failure:
        words = failure.args[0].str() if isinstance(failure, KafkaException) else str(failure)
        raise InvalidInputError(
            f"the Kafka client cannot be set up: {words}",
            remedy="correct the property; librdkafka's CONFIGURATION.md lists them",
        ) from None


def fetch_partitions(
    client: Producer | Consumer, topic: str, errors: ClientErrors, clock: Clock
) -> list[int]:
    """The partitions of a topic: the first contact with a broker.

    Raises `NotFoundError` for a topic that is not there, and `BrokerAwayError` when no broker is.
    """
    end = clock.monotonic() + _REACH_SECONDS
    tries = 0
    while True:
        tries += 1
        try:
            found = client.list_topics(topic, timeout=_STEP_SECONDS).topics[topic]
        except KafkaException:
            client.poll(0)  # hear of the cause
            # Who stood still for a while has not tried for as long as the clock says.
            if errors.hopeless or (clock.monotonic() >= end and tries * _STEP_SECONDS >= _REACH_SECONDS):
                raise BrokerUnavailableError(
                    f"no Kafka broker can be reached: {errors.cause or 'none answers'}",
                    remedy="see whether an agent runs there, and name it with --bootstrap-server HOST:PORT",
                ) from None
            continue
        if found.error is not None:
            raise to_siltstone_error(found.error, topic)
        return sorted(found.partitions)


def to_siltstone_error(error: KafkaError | KafkaException, topic: str) -> SiltstoneError:
    """An error of the client or a broker, in the family that says what to do about it."""
    known = error.args[0] if isinstance(error, KafkaException) else error
    if known.code() in _UNKNOWN:
        return NotFoundError(
            f"there is no topic {topic!r}, or not that partition of it",
            remedy=f"see: siltstone topics list; make it with: siltstone topics create {topic}",
        )
    words = f"{known.name()}: {known.str()}"
    if known.fatal():
        return FatalError(f"the Kafka client had to give up: {words}")
    if known.retriable() or known.code() in _HOPELESS:
        return RetryableError(f"topic {topic!r}: {words}", remedy="try again later")
    return InvalidInputError(f"topic {topic!r}: {words}")
