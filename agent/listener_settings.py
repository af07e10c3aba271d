"""Settings of listeners, and the listeners that they define.

Names and formats are Kafka's, in snake case: `listeners`, `advertised_listeners`,
`listener_security_protocol_map`. The files of TLS have the names of librdkafka, whose files are PEM as well.
A setting in `LISTENER_SETTINGS` may differ per listener, as in Kafka:
`listener_name_internal_ssl_client_auth` is `ssl_client_auth` of the listener INTERNAL.
"""

from __future__ import annotations

import re
from collections.abc import Mapping  # noqa: TC003 - pydantic evaluates the annotations
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from agent.listeners import (
    ClientAuth,
    HttpAuthentication,
    HttpListener,
    KafkaListener,
    SaslMechanism,
    SecurityProtocol,
    TlsSettings,
    TlsVersion,
)
from core.addresses import split_address
from core.errors import InvalidInputError
from core.settings import setting

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

Choice = TypeVar("Choice", bound=StrEnum)
OVERRIDE_PREFIX: Final = "listener_name_"
LISTENER_SETTINGS: Final = (
    "http_authentication",
    "sasl_enabled_mechanisms",
    "ssl_ca_location",
    "ssl_certificate_location",
    "ssl_client_auth",
    "ssl_enabled_protocols",
    "ssl_key_location",
    "ssl_key_password_file",
    "ssl_principal_mapping_rules",
)
"""Settings that may differ per listener."""

_PROTOCOLS: Final = {each.value: each for each in SecurityProtocol}
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
ANY_ADDRESS: Final = "0.0.0.0"  # noqa: S104  # what an empty host means in Kafka's format


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerSettings:
    """Listeners as users write them; `kafka_listeners` and `http_listeners` parse them."""

    listeners: str | None = setting(
        None,
        "Comma-separated listeners for Kafka clients, `NAME://HOST:PORT`; they replace the one of `kafka`. A "
        "listener whose name is a security protocol has this protocol. Other names need an entry in "
        "`listener_security_protocol_map`.",
    )
    advertised_listeners: str | None = setting(
        None,
        "Comma-separated addresses that Kafka clients receive, `NAME://HOST:PORT`, by the listener that they "
        "connected to; port 0 stands for the port of the listener. Listeners without an entry: their own "
        "address.",
    )
    http_listeners: str | None = setting(
        None,
        "Comma-separated listeners for HTTP clients, `NAME://HOST:PORT`; they replace the one of `http`. "
        "Their names need an entry in `listener_security_protocol_map`, PLAINTEXT or SSL.",
    )
    http_allowed_hosts: str = setting(
        "",
        "Comma-separated host names, besides those of loopback, that requests to an HTTP listener on "
        "loopback may name: that of a reverse proxy. Other requests are rejected, because they may come "
        "from a web page.",
    )
    listener_security_protocol_map: str = setting(
        "",
        "Comma-separated security protocols of listeners, `NAME:PROTOCOL`. Protocols are PLAINTEXT, SSL, "
        "SASL_PLAINTEXT and SASL_SSL.",
    )
    allow_insecure_listeners: bool = setting(
        False,
        "Accept a listener to which other machines can connect, but which has no TLS or authenticates no "
        "clients.",
    )
    sasl_enabled_mechanisms: str = setting(
        "SCRAM-SHA-256,SCRAM-SHA-512",
        "Comma-separated SASL mechanisms of listeners with SASL: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, "
        "OAUTHBEARER. May differ per listener.",
    )
    http_authentication: str = setting(
        "none",
        "Comma-separated ways in which HTTP clients must authenticate: `basic`, `bearer`; or `none`. A "
        "client with a certificate for which `ssl_client_auth` asked needs no other. May differ per "
        "listener.",
    )
    ssl_certificate_location: Path | None = setting(
        None,
        "PEM file with the certificate chain of listeners with TLS. A changed file is read without a "
        "restart. May differ per listener.",
    )
    ssl_key_location: Path | None = setting(
        None,
        "PEM file with the private key. Unset: the key is in `ssl_certificate_location`. May differ per "
        "listener.",
    )
    ssl_key_password_file: Path | None = setting(
        None,
        "File whose first line is the password of an encrypted private key. May differ per listener.",
    )
    ssl_ca_location: Path | None = setting(
        None,
        "PEM file with the authorities that sign certificates of clients. May differ per listener.",
    )
    ssl_client_auth: str = setting(
        "none",
        "Whether clients present a certificate: `none`, `requested` or `required`. A listener with SASL_SSL "
        "obeys only its own `listener_name_…_ssl_client_auth`, as in Kafka. May differ per listener.",
    )
    ssl_enabled_protocols: str = setting(
        "TLSv1.2,TLSv1.3",
        "Comma-separated versions of TLS: TLSv1.2, TLSv1.3. May differ per listener.",
    )
    ssl_principal_mapping_rules: str = setting(
        "DEFAULT",
        "Kafka's rules that map the distinguished name of a client's certificate to the name of a user. May "
        "differ per listener.",
    )
    overrides: Mapping[str, str] = field(default_factory=dict)


def is_override(name: str) -> bool:
    """Return True if `name` may be a setting of one listener."""
    return name.startswith(OVERRIDE_PREFIX) and any(name.endswith(f"_{each}") for each in LISTENER_SETTINGS)


def kafka_listeners(settings: ListenerSettings) -> tuple[KafkaListener, ...]:
    """Return the listeners of `listeners`, none if it is not set.

    Raises InvalidInputError for a wrong setting.
    """
    own = _entries("listeners", settings.listeners)
    advertised = _entries("advertised_listeners", settings.advertised_listeners)
    for name in advertised:
        if name not in own:
            raise InvalidInputError(
                f"setting advertised_listeners names {name}, which is not in listeners",
                remedy="add the listener to listeners, or remove it from advertised_listeners",
            )
    return tuple(
        _kafka_listener(settings, name, address, advertised.get(name)) for name, address in own.items()
    )


def http_listeners(settings: ListenerSettings) -> tuple[HttpListener, ...]:
    """Return the listeners of `http_listeners`, none if it is not set.

    Raises InvalidInputError for a wrong setting.
    """
    return tuple(
        _http_listener(settings, name, address)
        for name, address in _entries("http_listeners", settings.http_listeners).items()
    )


def check_listeners(
    kafka: Iterable[KafkaListener], http: Iterable[HttpListener], settings: ListenerSettings
) -> None:
    """Raise InvalidInputError if two listeners collide, or a setting is for no listener."""
    names: set[str] = set()
    addresses: set[tuple[str, int]] = set()
    listeners: list[KafkaListener | HttpListener] = [*kafka, *http]
    for each in listeners:
        if each.name in names:
            raise InvalidInputError(
                f"two listeners have the name {each.name}",
                remedy="give every listener in listeners and http_listeners its own name",
            )
        if each.port and (each.host, each.port) in addresses:
            raise InvalidInputError(
                f"listener {each.name} has the address of another listener: {each.host}:{each.port}",
                remedy="give every listener its own port",
            )
        names.add(each.name)
        addresses.add((each.host, each.port))
    prefixes = {_override_prefix(name): name for name in names}
    for override in settings.overrides:
        if not any(override.removeprefix(prefix) in LISTENER_SETTINGS for prefix in prefixes):
            raise InvalidInputError(
                f"setting {override} is for a listener that does not exist",
                remedy=f"the listeners are {', '.join(sorted(names))}",
            )
    for name in _protocols(settings):
        if name not in names and name not in _PROTOCOLS:
            raise InvalidInputError(
                f"setting listener_security_protocol_map names {name}, which is no listener",
                remedy="add it to listeners or http_listeners, or remove it from the map",
            )


def _kafka_listener(
    settings: ListenerSettings, name: str, address: tuple[str, int], advertised: tuple[str, int] | None
) -> KafkaListener:
    protocol = _protocol_of(settings, name)
    if advertised is not None and advertised[0] in {ANY_ADDRESS, "::"}:
        raise InvalidInputError(
            f"setting advertised_listeners: clients cannot connect to {advertised[0]} of listener {name}",
            remedy="give the host name or the address by which clients reach this machine",
        )
    mechanisms = (
        _choices(SaslMechanism, settings, name, "sasl_enabled_mechanisms") if protocol.has_sasl else ()
    )
    return KafkaListener(
        name=name,
        host=address[0],
        port=address[1],
        protocol=protocol,
        advertised_host=None if advertised is None else advertised[0],
        advertised_port=0 if advertised is None else advertised[1],
        tls=_tls(settings, name, protocol) if protocol.has_tls else None,
        mechanisms=mechanisms,
    )


def _http_listener(settings: ListenerSettings, name: str, address: tuple[str, int]) -> HttpListener:
    protocol = _protocol_of(settings, name)
    if protocol.has_sasl:
        raise InvalidInputError(
            f"setting listener_security_protocol_map: HTTP listener {name} cannot have {protocol}",
            remedy="use PLAINTEXT or SSL, and http_authentication for the clients' credentials",
        )
    return HttpListener(
        name=name,
        host=address[0],
        port=address[1],
        tls=_tls(settings, name, protocol) if protocol.has_tls else None,
        authentication=http_authentication(settings, name),
    )


def http_authentication(settings: ListenerSettings, name: str) -> tuple[HttpAuthentication, ...]:
    """Return how clients of an HTTP listener authenticate."""
    if _value(settings, name, "http_authentication").strip().lower() == "none":
        return ()
    return _choices(HttpAuthentication, settings, name, "http_authentication")


def _tls(settings: ListenerSettings, name: str, protocol: SecurityProtocol) -> TlsSettings:
    certificate = _path(settings, name, "ssl_certificate_location")
    if certificate is None:
        raise InvalidInputError(
            f"listener {name} has protocol {protocol}, and no certificate",
            remedy="set ssl_certificate_location, and ssl_key_location if the key is in another file",
        )
    client_auth = _client_auth(settings, name, protocol)
    client_ca = _path(settings, name, "ssl_ca_location")
    if client_auth is not ClientAuth.NONE and client_ca is None:
        raise InvalidInputError(
            f"listener {name} asks clients for certificates, and no authority is known that signs them",
            remedy="set ssl_ca_location, or ssl_client_auth to none",
        )
    return TlsSettings(
        certificate=certificate,
        key=_path(settings, name, "ssl_key_location"),
        key_password_file=_path(settings, name, "ssl_key_password_file"),
        client_ca=client_ca,
        client_auth=client_auth,
        versions=_choices(TlsVersion, settings, name, "ssl_enabled_protocols"),
        principal_mapping_rules=_value(settings, name, "ssl_principal_mapping_rules"),
    )


def _client_auth(settings: ListenerSettings, name: str, protocol: SecurityProtocol) -> ClientAuth:
    """Return whether clients present a certificate; with SASL only by an override (KIP-684)."""
    if protocol.has_sasl and _override_prefix(name) + "ssl_client_auth" not in settings.overrides:
        return ClientAuth.NONE
    chosen = _choices(ClientAuth, settings, name, "ssl_client_auth")
    if len(chosen) != 1:
        raise _wrong(name, "ssl_client_auth", "several values", ClientAuth)
    return chosen[0]


def _protocol_of(settings: ListenerSettings, name: str) -> SecurityProtocol:
    known = {**_PROTOCOLS, **_protocols(settings)}
    if name not in known:
        raise InvalidInputError(
            f"listener {name} has no security protocol",
            remedy=f"add {name}:PROTOCOL to listener_security_protocol_map; {_list(SecurityProtocol)}",
        )
    return known[name]


def _protocols(settings: ListenerSettings) -> dict[str, SecurityProtocol]:
    found = {}
    for entry in _split(settings.listener_security_protocol_map):
        name, separator, protocol = (part.strip().upper() for part in entry.partition(":"))
        if not separator or not _NAME.fullmatch(name) or protocol not in _PROTOCOLS:
            raise InvalidInputError(
                f"setting listener_security_protocol_map: {entry!r} is not NAME:PROTOCOL",
                remedy=_list(SecurityProtocol),
            )
        found[name] = _PROTOCOLS[protocol]
    return found


def _entries(setting_name: str, text: str | None) -> dict[str, tuple[str, int]]:
    """Return the addresses by listener of a list of `NAME://HOST:PORT`."""
    found: dict[str, tuple[str, int]] = {}
    for entry in _split(text or ""):
        name, separator, address = entry.partition("://")
        name = name.upper()
        if not separator or not _NAME.fullmatch(name):
            raise InvalidInputError(
                f"setting {setting_name}: {entry!r} is not NAME://HOST:PORT",
                remedy="write it as INTERNAL://127.0.0.1:9092",
            )
        if name in found:
            raise InvalidInputError(
                f"setting {setting_name}: two entries have the name {name}",
                remedy="give every listener its own name",
            )
        # As in Kafka, no host stands for all interfaces.
        try:
            found[name] = split_address(ANY_ADDRESS + address if address.startswith(":") else address)
        except ValueError as error:
            raise InvalidInputError(f"setting {setting_name}: {error}") from None
    return found


def _choices(
    kind: type[Choice], settings: ListenerSettings, name: str, setting_name: str
) -> tuple[Choice, ...]:
    """Return the members of an enumeration that a setting lists; at least one."""
    known = {each.value.upper(): each for each in kind}
    text = _value(settings, name, setting_name)
    chosen = []
    for part in _split(text):
        if part.upper() not in known:
            raise _wrong(name, setting_name, repr(part), kind)
        chosen.append(known[part.upper()])
    if not chosen:
        raise _wrong(name, setting_name, "an empty list", kind)
    return tuple(dict.fromkeys(chosen))


def _wrong(name: str, setting_name: str, value: str, kind: type[StrEnum]) -> InvalidInputError:
    return InvalidInputError(f"setting {setting_name} of listener {name}: {value}", remedy=_list(kind))


def _list(kind: type[StrEnum]) -> str:
    return f"choose from {', '.join(kind)}"


def _path(settings: ListenerSettings, name: str, setting_name: str) -> Path | None:
    value = _value(settings, name, setting_name)
    return Path(value) if value else None


def _value(settings: ListenerSettings, name: str, setting_name: str) -> str:
    """Return a setting of one listener as text, empty if it is unset."""
    own = settings.overrides.get(_override_prefix(name) + setting_name)
    value = getattr(settings, setting_name) if own is None else own
    return "" if value is None else str(value)


def _override_prefix(name: str) -> str:
    return f"{OVERRIDE_PREFIX}{name.lower().replace('-', '_')}_"


def _split(text: str) -> Iterator[str]:
    return (part.strip() for part in text.split(",") if part.strip())
