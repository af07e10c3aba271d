"""The configuration of one consumer group: Kafka's names, types and defaults.

Source: org.apache.kafka.coordinator.group.GroupConfig of Kafka 4.3, without the settings of share groups and
streams groups, which there are none of. How far values may go is said by the coordinator's own settings.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar, Final

from catalog.config.configured import Configured
from catalog.config.setting import Setting

if TYPE_CHECKING:
    from collections.abc import Mapping

SESSION_TIMEOUT: Final = "consumer.session.timeout.ms"
HEARTBEAT_INTERVAL: Final = "consumer.heartbeat.interval.ms"

_ALL: Final = (
    Setting(
        name=SESSION_TIMEOUT,
        of="group",
        kind="int",
        default="45000",
        lowest=1,
        broker_name="group.consumer.session.timeout.ms",
        documentation="How long a member of the consumer protocol may be silent.",
    ),
    Setting(
        name=HEARTBEAT_INTERVAL,
        of="group",
        kind="int",
        default="5000",
        lowest=1,
        broker_name="group.consumer.heartbeat.interval.ms",
        documentation="How often members of the consumer protocol are told to send heartbeats.",
    ),
    Setting(
        name="consumer.assignment.interval.ms",
        of="group",
        kind="int",
        default="0",
        lowest=0,
        highest=0,
        broker_name="group.consumer.assignment.interval.ms",
        documentation="How long the next assignment waits after the last one. It cannot wait.",
        remedy="give 0: partitions are assigned as soon as members or topics change",
    ),
)

GROUP_SETTINGS: Final[Mapping[str, Setting]] = MappingProxyType({each.name: each for each in _ALL})


@dataclass(frozen=True, slots=True)
class GroupConfig(Configured):
    """The settings of one group."""

    known: ClassVar[Mapping[str, Setting]] = GROUP_SETTINGS

    @property
    def session_timeout_ms(self) -> int | None:
        """How long members may be silent; None where nobody set it."""
        return None if self.is_default(SESSION_TIMEOUT) else self._whole(SESSION_TIMEOUT)

    @property
    def heartbeat_interval_ms(self) -> int | None:
        """How often members send heartbeats; None where nobody set it."""
        return None if self.is_default(HEARTBEAT_INTERVAL) else self._whole(HEARTBEAT_INTERVAL)
