from __future__ import annotations

import pytest

from core import errors
from core.errors import CorruptDataError, RetryableError, SiltstoneError


def test_the_remedy_follows_the_message() -> None:
    error = SiltstoneError("topic 'a b' has a space", remedy="use letters, digits, '.', '_' and '-'")

    assert str(error) == "topic 'a b' has a space (use letters, digits, '.', '_' and '-')"


def test_without_a_remedy_only_the_message_is_shown() -> None:
    assert str(CorruptDataError("block 3 is cut short")) == "block 3 is cut short"


def test_a_retryable_error_has_a_hint_when_to_retry() -> None:
    assert RetryableError("the buffer is full", retry_after_seconds=0.5).retry_after_seconds == 0.5


@pytest.mark.parametrize("name", [name for name in vars(errors) if name.endswith("Error")])
def test_every_error_derives_from_the_base_class(name: str) -> None:
    assert issubclass(getattr(errors, name), SiltstoneError)
