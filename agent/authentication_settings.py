"""Settings of authentication; names and defaults are Kafka's where Kafka has the setting."""

from __future__ import annotations

from dataclasses import dataclass

from core.errors import InvalidInputError
from core.settings import Bytes, check_bounds, internal, setting

_KIB = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthenticationSettings:
    """Bounds before a client is authenticated, the lifetime of sessions, and what verifies tokens."""

    connections_max_reauth_ms: int = setting(
        0,
        "Time after which a client of a listener with SASL must authenticate again (KIP-368); 0: it never "
        "must, unless its token expires.",
        ge=0,
    )
    connection_failed_authentication_delay_ms: int = setting(
        100,
        "Delay of the response to a failed login, over Kafka and HTTP.",
        ge=0,
        le=60_000,
    )
    sasl_server_max_receive_size: Bytes = setting(
        512 * _KIB, "Largest request that an agent accepts before a client is authenticated."
    )
    authentication_timeout_ms: int = setting(
        10_000, "Time in which a client of a listener with SASL must authenticate."
    )
    max_unauthenticated_connections: int = setting(
        1_000,
        "Maximum number of connections of Kafka clients that have not authenticated yet; for another one, "
        "the agent closes the oldest of an address that has most.",
    )
    sasl_oauthbearer_jwks_endpoint_url: str | None = setting(
        None,
        "URL (`https://…` or `file:///…`) of the keys (JWKS) that verify tokens, for OAUTHBEARER and for "
        "`http_authentication` with `bearer`. Plain `http` is accepted for loopback only.",
    )
    sasl_oauthbearer_expected_issuer: str | None = setting(
        None, "Issuer that tokens must have (claim `iss`). Needed for tokens."
    )
    sasl_oauthbearer_expected_audience: str | None = setting(
        None,
        "Comma-separated audiences. A token must have one of them (claim `aud`). Needed for tokens.",
    )
    sasl_oauthbearer_sub_claim_name: str = setting("sub", "Claim of a token that is the name of the user.")
    sasl_oauthbearer_clock_skew_seconds: int = setting(
        30,
        "Difference of clocks that is accepted when the times in a token are checked.",
        ge=0,
        le=600,
    )
    sasl_oauthbearer_jwks_endpoint_refresh_ms: int = setting(
        3_600_000,
        "Interval at which the keys that verify tokens are read again. A token with an unknown key id, or a "
        "changed file, makes the agent read them earlier.",
        ge=1_000,
    )
    jwks_retry_ms: int = internal(
        10_000, "Minimum time between two attempts to read the keys that verify tokens."
    )
    jwks_timeout_ms: int = internal(5_000, "Time in which the server of the keys must respond.")
    user_cache_ms: int = internal(
        1_000, "Time for which the credentials of a user are cached, and so a deleted user may still log in."
    )
    max_cached_users: int = internal(1_000, "Maximum number of users whose credentials are cached.")
    threads: int = internal(2, "Threads that look up users, and as many that verify passwords and tokens.")
    max_waiting_logins: int = internal(
        1_000,
        "Maximum number of logins that wait for a thread, and of those of one address that wait for each "
        "other; the connection is closed beyond.",
    )

    def __post_init__(self) -> None:
        check_bounds(self, "agent")
        if self.sasl_oauthbearer_jwks_endpoint_url is None:
            return
        for name in ("sasl_oauthbearer_expected_issuer", "sasl_oauthbearer_expected_audience"):
            if not (getattr(self, name) or "").strip():
                raise InvalidInputError(
                    f"setting {name} is needed with sasl_oauthbearer_jwks_endpoint_url",
                    remedy=f"set {name}, so that tokens for other services are refused",
                )
