"""Secrets in URLs: no message, log line or repr shows a part of one, for any error in the URL."""

from __future__ import annotations

import traceback
from contextlib import suppress
from typing import TYPE_CHECKING
from urllib.parse import quote

import pytest
from click.testing import CliRunner
from hypothesis import example, given
from hypothesis import strategies as st

from catalog.database.address import describe_address, parse_address
from catalog.database.limits import DatabaseLimits
from catalog.database.pool import Database
from catalog.errors import CatalogAddressError
from core.clock import ManualClock
from core.errors import InvalidInputError
from core.ids import SeededIds
from object_store.open import StoreConfig
from siltstone.cli.main import cli, report_error
from siltstone.settings.sources import ConfigurationError, load_settings

if TYPE_CHECKING:
    from collections.abc import Callable

    from siltstone.settings.configuration import Settings

_WRONG_PLACE = "postgresql://me:QXZJ\\'QXZJ@127.0.0.1:9/logs"
_SHOWN = 4
"""Length of the shortest part of a secret that nothing may show."""
_RESERVED = "@:/?#[]%!$&'()*+,;= \\\"<>^`{|}~._-"
# Q, X, Z and J occur in no message twice within four characters, so every match is a leak.
secrets = st.text(alphabet=st.sampled_from(f"QXZJQXZJQXZJQXZJ059{_RESERVED}"), min_size=6, max_size=24)


def shown_parts(secret: str, text: str) -> list[str]:
    """Return the parts of a secret that a text shows."""
    parts = {secret[start : start + _SHOWN] for start in range(len(secret) - _SHOWN + 1)}
    return [part for part in parts if part in text and sum(each in "QXZJ" for each in part) > 1]


def _quoted(secret: str) -> str:
    return quote(secret, safe="")


_URLS: dict[str, Callable[[str], str]] = {
    "correct": lambda secret: f"postgresql://me:{_quoted(secret)}@127.0.0.1:5432/logs",
    "not encoded": lambda secret: f"postgresql://me:{secret}@127.0.0.1:5432/logs",
    "no database": lambda secret: f"postgresql://me:{secret}@127.0.0.1",
    "parameter": lambda secret: f"postgresql://127.0.0.1/logs?user=me&password={secret}",
    "no user": lambda secret: f"postgresql://:{secret}@127.0.0.1/logs",
    "no slashes": lambda secret: f"postgresql:me:{secret}@127.0.0.1/logs",
    "no scheme": lambda secret: f"me:{secret}@127.0.0.1/logs",
    "other scheme": lambda secret: f"postgresql+psycopg://me:{secret}@127.0.0.1/logs",
    "capitals": lambda secret: f"POSTGRESQL://me:{secret}@127.0.0.1/logs",
    "no at sign": lambda secret: f"postgresql://me:{secret}127.0.0.1/logs",
    "two at signs": lambda secret: f"postgresql://me:{secret}@@127.0.0.1/logs",
    "port": lambda secret: f"postgresql://me@127.0.0.1:{secret}/logs",
    "encoded twice": lambda secret: f"postgresql://me:{_quoted(_quoted(secret))}@127.0.0.1/logs",
    "half encoded": lambda secret: f"postgresql://me:{_quoted(secret[:3])}{secret[3:]}@127.0.0.1/logs",
}


def _texts_of(error: BaseException) -> str:
    return "\n".join([str(error), repr(error), *traceback.format_exception(error)])


@given(secret=secrets, mistake=st.sampled_from(sorted(_URLS)))
@example(secret="QXss/w@ZZZZ", mistake="not encoded")
@example(secret="QX]ss[ZZZZ", mistake="not encoded")
@example(secret="QX%zzJJJJ", mistake="not encoded")
@example(secret="QQQQ?ZZZZ=JJJJ", mistake="not encoded")
@example(secret="05/QXZJQXZJ", mistake="no at sign")
def test_no_part_of_a_password_is_shown(secret: str, mistake: str) -> None:
    """Accepted URLs are split as intended, so PostgreSQL's own messages show no secret either."""
    url = _URLS[mistake](secret)
    shown = describe_address(url)
    try:
        given_parts = parse_address(url)
    except CatalogAddressError as error:
        shown += _texts_of(error)
    else:
        shown += " ".join(value for name, value in given_parts.items() if name != "password")
        with suppress(InvalidInputError):
            database = Database(url, ManualClock(), SeededIds(1, ManualClock()), DatabaseLimits())
            shown += repr(database)
            database.close()
    try:
        shown += repr(load_settings({"catalog": url}))
    except ConfigurationError as error:
        shown += _texts_of(error)
    assert shown_parts(secret, shown) == []


def test_the_error_explains_percent_encoding() -> None:
    with pytest.raises(CatalogAddressError, match="'@' is %40"):
        parse_address(_URLS["not encoded"]("a@b/c"))


@given(secret=secrets)
def test_an_encoded_password_is_accepted(secret: str) -> None:
    assert parse_address(_URLS["correct"](secret))["password"] == secret


_STORES: dict[str, Callable[[str], str]] = {
    "user": lambda secret: f"s3://AKIAEXAMPLE:{secret}@bucket/prefix",
    "no scheme": lambda secret: f"AKIAEXAMPLE:{secret}@bucket/prefix",
    "bucket": lambda secret: f"s3://{secret}@bucket/prefix",
    "capitals": lambda secret: f"S3://AKIAEXAMPLE:{secret}@bucket",
    "one slash": lambda secret: f"s3:/AKIAEXAMPLE:{secret}@bucket",
    "other scheme": lambda secret: f"https://AKIAEXAMPLE:{secret}@bucket.example/prefix",
    "query": lambda secret: f"s3://bucket/prefix?aws_secret_access_key={secret}",
    "file": lambda secret: f"file://AKIAEXAMPLE:{secret}@bucket/prefix",
}


@given(secret=secrets, mistake=st.sampled_from(sorted(_STORES)))
@example(secret="QXZJ/QXZJ+QXZJ", mistake="user")
@example(secret="/QXZJQXZJ", mistake="user")
def test_no_part_of_a_key_in_a_store_url_is_shown(secret: str, mistake: str) -> None:
    url = _STORES[mistake](secret)
    for options in ({"object_store": url}, {"object_store": "s3://bucket", "s3_endpoint": url}):
        with pytest.raises(ConfigurationError) as rejected:
            load_settings(options)
        assert shown_parts(secret, _texts_of(rejected.value)) == []
    with pytest.raises(InvalidInputError) as rejected_directly:
        StoreConfig(url)
    assert shown_parts(secret, _texts_of(rejected_directly.value)) == []


@pytest.mark.parametrize("command", [("topics", "list"), ("migrate",), ("compact", "--once"), ("agent",)])
@pytest.mark.parametrize("debug", [(), ("--debug",)])
def test_no_command_shows_an_unescaped_password(
    command: tuple[str, ...], debug: tuple[str, ...], capfd: pytest.CaptureFixture[str]
) -> None:
    secret = "QXZJ@ss/wQXZJ"
    result = CliRunner().invoke(cli, [*command, *debug, "--catalog", _URLS["not encoded"](secret)])
    assert result.exit_code == 2
    assert "setting catalog (from the command line, --catalog)" in result.output
    captured = capfd.readouterr()
    assert shown_parts(secret, result.output + captured.out + captured.err) == []


@pytest.mark.parametrize(
    "before",
    [
        (),
        ("migrate",),
        ("topics",),
        ("topics", "list"),
        ("compact", "--interval"),
        ("compact", "--watc"),
        ("--x",),
    ],
    ids=" ".join,
)
def test_no_command_shows_a_url_without_its_option(before: tuple[str, ...]) -> None:
    """As in `siltstone migrate "$URL"`, whose output a build system publishes."""
    secret = "QXZJ'@ss \n/wQXZJ"
    result = CliRunner().invoke(cli, [*before, _URLS["not encoded"](secret), "list"])
    assert result.exit_code == 2
    assert shown_parts(secret, result.output) == []


def test_an_unexpected_error_shows_no_secret_of_the_settings(capfd: pytest.CaptureFixture[str]) -> None:
    """A traceback has lines of code, and no values of variables."""
    secret = "QXZJQXZJ"

    def fail(settings: Settings) -> None:
        raise RuntimeError(f"a defect with {settings!r}")

    with pytest.raises(RuntimeError) as failed:
        fail(load_settings({"catalog": _URLS["correct"](secret)}))
    report_error(failed.value, debug=True)
    captured = capfd.readouterr()
    assert "a defect" in captured.err
    assert shown_parts(secret, captured.out + captured.err) == []


@pytest.mark.parametrize(
    "command",
    [
        ("topics", "create", "t", "--config", _WRONG_PLACE),
        ("quotas", "set", "--user", "ann", _WRONG_PLACE),
        ("simulate", _WRONG_PLACE),
        ("plan", f"--data-dir={_WRONG_PLACE}"),
        ("plan", "--config", _WRONG_PLACE),
        ("consume", "t", "-b", "127.0.0.1:9", "--timestamp", _WRONG_PLACE),
        ("consume", "t", "-b", "127.0.0.1:9", "-F", _WRONG_PLACE),
    ],
    ids=" ".join,
)
@pytest.mark.parametrize("debug", [(), ("--debug",)])
def test_no_command_shows_the_password_of_a_url_in_the_wrong_place(
    command: tuple[str, ...], debug: tuple[str, ...]
) -> None:
    result = CliRunner().invoke(cli, [*command, *debug])
    assert "QXZJ" not in result.output
    assert "…" in result.output
    assert result.exit_code in {1, 2}


def test_a_url_without_a_password_is_shown() -> None:
    result = CliRunner().invoke(cli, ["simulate", "http://127.0.0.1:9/x"])
    assert "127.0.0.1:9/x" in result.output
