"""The settings of one thing: what was set, checked, with defaults for what was not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from catalog.config.setting import known_setting

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Self

    from catalog.config.setting import Setting


@dataclass(frozen=True, slots=True)
class Configured:
    """Settings out of `known`; `explicit` holds only what was set, sorted by name.

    Only that is stored: a default may change with a version.
    """

    known: ClassVar[Mapping[str, Setting]]
    explicit: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, settings: Mapping[str, str]) -> Self:
        """Validate `settings`; InvalidConfigError names the setting, its value and what is allowed."""
        for name, text in settings.items():
            known_setting(cls.known, name).check_new(text)
        config = cls.stored(settings)
        config._check()  # noqa: SLF001  # its own
        return config

    @classmethod
    def stored(cls, settings: Mapping[str, str]) -> Self:
        """What was valid when it was stored, by rules that may have changed since."""
        return cls(tuple(sorted(settings.items())))

    def _check(self) -> None:
        """Raise InvalidConfigError for settings that are sound each, and make no sense together."""

    def altered(self, changes: Mapping[str, str | None]) -> Self:
        """These settings with `changes` made; None takes a setting back to its default."""
        for name in changes:
            known_setting(self.known, name)
        merged: dict[str, str | None] = {**dict(self.explicit), **changes}
        return self.of({name: text for name, text in merged.items() if text is not None})

    def text(self, name: str) -> str:
        """The setting as text, as DescribeConfigs shows it."""
        return dict(self.explicit).get(name, known_setting(self.known, name).default)

    def value(self, name: str) -> bool | int | float | str:
        """The setting as its type."""
        return known_setting(self.known, name).parse(self.text(name))

    def as_strings(self) -> dict[str, str]:
        """What was set, as it is stored."""
        return dict(self.explicit)

    def is_default(self, name: str) -> bool:
        """Whether nobody set it."""
        return name not in dict(self.explicit)

    def _whole(self, name: str) -> int:
        return int(self.value(name))
