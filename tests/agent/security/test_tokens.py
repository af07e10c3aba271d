"""Tokens: accepted ones, forgeries, and keys that rotate."""

from __future__ import annotations

import asyncio
import hmac
import json
from base64 import urlsafe_b64encode
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import orjson
import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from joserfc import jws, jwt
from joserfc.jwk import ECKey, OctKey, RSAKey
from prometheus_client import CollectorRegistry, Counter

from agent.authentication_settings import AuthenticationSettings
from agent.runtime.work_pool import WorkPool
from agent.security.errors import AuthenticationFailedError, LoginUnavailableError
from agent.security.login_pool import LoginPool
from agent.security.signing_keys import SigningKeys
from agent.security.tokens import TokenVerifier
from core.clock import ManualClock, SystemClock
from core.errors import InvalidInputError
from tests.agent.security.token_issuer import AUDIENCE, ISSUER, Issuer, KeyServer, segment

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from agent.security.sasl.exchange import Identity


class Verifier:
    """A verifier over a file of keys or a server of them, with a clock that a test advances."""

    def __init__(self, url: str, **changes: Any) -> None:  # noqa: ANN401  # any setting
        self.clock = ManualClock(SystemClock().now_ms())
        settings = AuthenticationSettings(
            sasl_oauthbearer_jwks_endpoint_url=url,
            sasl_oauthbearer_expected_issuer=ISSUER,
            sasl_oauthbearer_expected_audience=f"other, {AUDIENCE}",
        )
        settings = replace(settings, **changes)
        self.pool = WorkPool("logins", threads=1, max_waiting=10)
        self.refreshes = Counter("refreshes", "", ["outcome"], registry=CollectorRegistry())
        self._keys = SigningKeys(url, settings, self.pool, self.clock, self.refreshes)
        self._verifier = TokenVerifier(settings, self._keys, LoginPool(self.pool, 10), self.clock)
        self._loop = asyncio.new_event_loop()

    def verify(self, token: str) -> Identity:
        return self._loop.run_until_complete(self._verifier.verify(token, host="192.0.2.1"))

    def rejected(self, token: str) -> str:
        with pytest.raises(AuthenticationFailedError) as caught:
            self.verify(token)
        assert not token or token not in str(caught.value)
        return caught.value.reason

    def close(self) -> None:
        self.pool.close()
        self._loop.close()


@pytest.fixture(scope="module")
def issuer() -> Issuer:
    return Issuer()


@pytest.fixture
def verifier(issuer: Issuer, tmp_path: Path) -> Iterator[Verifier]:
    file = tmp_path / "keys.json"
    file.write_bytes(issuer.key_set())
    opened = Verifier(file.as_uri())
    yield opened
    opened.close()


def test_tokens_of_the_issuer_are_accepted(issuer: Issuer, verifier: Verifier) -> None:
    for key in (issuer.rsa, issuer.ec):
        for _ in range(2):
            identity = verifier.verify(issuer.token(key, exp=verifier.clock.now_ms() // 1000 + 60))
            assert identity.name == "ada"
            assert identity.expires_ms == (verifier.clock.now_ms() // 1000 + 60) * 1000
    assert verifier.verify(issuer.token(issuer.rsa, "PS256", aud=["x", AUDIENCE])).name == "ada"
    assert verifier.verify(issuer.token(sub="a,b=c")).name == "a,b=c"


def test_forged_tokens_are_rejected(issuer: Issuer, verifier: Verifier) -> None:
    thief = ECKey.generate_key("P-256", {"kid": "ec"})
    small = RSAKey.generate_key(2048, {"kid": "rsa"})
    token = issuer.token()
    head, body, signature = token.split(".")
    public = orjson.dumps(issuer.rsa.as_dict(private=False))
    shared = OctKey.import_key(public, {"kid": "rsa"})
    by_pem = f"{segment({'alg': 'HS256', 'kid': 'rsa'})}.{body}"
    assert isinstance(issuer.rsa, RSAKey)
    mac = hmac.digest(issuer.rsa.as_pem(private=False), by_pem.encode(), "sha256")
    forged = [
        issuer.unsigned(),
        f"{segment({'alg': 'none'})}.{body}.{signature}",
        f"{segment({'alg': 'None', 'kid': 'ec'})}.{body}.",
        issuer.token(thief),
        issuer.token(small),
        issuer.token(shared, "HS256"),
        f"{by_pem}.{urlsafe_b64encode(mac).rstrip(b'=').decode()}",
        f"{head}.{segment(issuer.claims(sub='root'))}.{signature}",
        f"{head}.{body}.",
        f"{head}.{body}.{signature[:-4]}AAAA",
        jwt.encode(
            {"alg": "ES256", "jwk": thief.as_dict(private=False)},
            issuer.claims(),
            thief,
            algorithms=["ES256"],
        ),
        jwt.encode({"alg": "ES256", "kid": "unknown"}, issuer.claims(), issuer.ec, algorithms=["ES256"]),
        f"{segment({'alg': 'ES256', 'kid': 'ec', 'crit': ['x'], 'x': 1})}.{body}.{signature}",
        f"{segment({'alg': 'ES256', 'kid': ['ec']})}.{body}.{signature}",
        f"{'W' * 6000}.{body}.{signature}",
        "a.b.c",
        "a.b.c.d.e",
        "",
        "x" * 100_000,
        "[" * 5000,
    ]
    for each in forged:
        verifier.rejected(each)


def _signed(issuer: Issuer, header: bytes, payload: bytes) -> str:
    """Return a token with a valid signature of the issuer over any header and payload."""
    signed = b".".join(urlsafe_b64encode(each).rstrip(b"=") for each in (header, payload))
    key = issuer.ec.private_key
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    r, s = decode_dss_signature(key.sign(signed, ec.ECDSA(hashes.SHA256())))
    signature = urlsafe_b64encode(r.to_bytes(32, "big") + s.to_bytes(32, "big")).rstrip(b"=")
    return b".".join((signed, signature)).decode()


def test_odd_headers_and_claims_are_rejected_although_the_issuer_signed_them(
    issuer: Issuer, verifier: Verifier
) -> None:
    header, claims = b'{"alg":"ES256","kid":"ec"}', orjson.dumps(issuer.claims())
    assert verifier.verify(_signed(issuer, header, claims)).name == "ada"
    more = header[:-1]
    headers = [
        b'{"alg":"ES256","alg":"none","kid":"ec"}',
        b'{"alg":["ES256"],"kid":"ec"}',
        b'{"alg":null,"kid":"ec"}',
        b'{"kid":"ec"}',
        b'{"alg":"ES384","kid":"ec"}',
        b'{"alg":"ES256","kid":5}',
        b'{"alg":"ES256","kid":null}',
        b'{"alg":"ES256","kid":"\\ud800"}',
        b"[1]",
        b'"x"',
        more + b',"crit":["b64"],"b64":false}',
        more + b',"b64":false}',
        more + b',"crit":"alg"}',
        more + b',"x":' + b"9" * 5000 + b"}",
        more + b',"x":' + b"[" * 4000,
    ]
    for each in headers:
        verifier.rejected(_signed(issuer, each, claims))
    aud, now = f'"aud":"{AUDIENCE}"'.encode(), str(issuer.claims()["exp"])[:4].encode()
    assert aud in claims
    payloads = [b"[1]", b'"x"', b"", b'{"a":' + b"[" * 20_000]
    wrong = (f'[["{AUDIENCE}"]]', f'{{"{AUDIENCE}":1}}', f'[5,null,"{AUDIENCE}"]', f'"other, {AUDIENCE}"')
    payloads += [claims.replace(aud, b'"aud":' + each.encode()) for each in wrong]
    payloads += [
        claims.replace(b'"exp":' + now, b'"exp":' + each + now) for each in (b'"', b"NaN,", b"-", b"9" * 4000)
    ]
    payloads += [claims[:-1] + b',"' + each for each in (b'exp":Infinity}', b'nbf":NaN}', b'nbf":null}')]
    for payload in payloads:
        verifier.rejected(_signed(issuer, header, payload))


def test_claims_must_be_for_this_agent_and_now(issuer: Issuer, verifier: Verifier) -> None:
    now = verifier.clock.now_ms() // 1000
    wrong: list[dict[str, Any]] = [
        {"exp": now - 31},
        {"exp": None},
        {"exp": "tomorrow"},
        {"exp": True},
        {"iat": None},
        {"iat": now + 60},
        {"nbf": now + 60},
        {"iss": "https://other.test"},
        {"iss": None},
        {"aud": "someone"},
        {"aud": ["someone"]},
        {"aud": None},
        {"sub": None},
        {"sub": ""},
        {"sub": 5},
        {"sub": "a\0b"},
        {"exp": 1e308},
        {"sub": "x" * 2000},
    ]
    for claims in wrong:
        assert verifier.rejected(issuer.token(**claims)) in {"invalid_claims", "expired_token"}
    payload = json.dumps(issuer.claims(sub="a\ud800")).encode()
    surrogate = jws.serialize_compact({"alg": "ES256", "kid": "ec"}, payload, issuer.ec)
    assert verifier.rejected(surrogate) == "invalid_claims", "no log and no response could name it"
    assert verifier.verify(issuer.token(exp=now - 29)).name == "ada"


def test_a_remembered_token_expires(issuer: Issuer, verifier: Verifier) -> None:
    token = issuer.token(exp=verifier.clock.now_ms() // 1000 + 60)
    verifier.verify(token)
    verifier.verify(token)
    verifier.clock.advance(91)
    assert verifier.rejected(token) == "expired_token"


def test_keys_rotate_and_survive_failures(tmp_path: Path) -> None:
    issuer = Issuer()
    server = KeyServer(issuer)
    verifier = Verifier(server.url)
    try:
        old = issuer.token()
        verifier.verify(old)
        assert server.requests == 1
        new = ECKey.generate_key("P-256", {"kid": "new"})
        issuer.published = [new]
        assert verifier.rejected(issuer.token(new)) == "unknown_key", "the last attempt was too recent"
        assert server.requests == 1
        verifier.clock.advance(10)
        assert verifier.verify(issuer.token(new)).name == "ada"
        assert server.requests == 2
        assert verifier.rejected(old) == "unknown_key", "a key that was withdrawn is not trusted any more"
        server.status = 503
        verifier.clock.advance(3600)
        token = issuer.token(new, exp=verifier.clock.now_ms() // 1000 + 60)
        assert verifier.verify(token).name == "ada", "the last keys stay valid"
        assert server.requests == 3
        assert verifier.refreshes.labels("failure")._value.get() == 1
    finally:
        verifier.close()
        server.close()
    file = tmp_path / "keys.json"
    file.write_bytes(issuer.key_set())
    verifier = Verifier(file.as_uri())
    verifier.verify(issuer.token(new))
    file.write_bytes(Issuer().key_set())
    verifier.clock.advance(10)
    assert verifier.rejected(issuer.token(new)) == "unknown_key", "a changed file is read at once"
    verifier.close()


def test_a_server_of_keys_that_sends_without_end_is_given_up(issuer: Issuer) -> None:
    """The time of each step is short, and only their sum is not."""
    server = KeyServer(issuer)
    verifier = Verifier(server.url, jwks_timeout_ms=200)
    server.drips = True
    try:
        with pytest.raises(LoginUnavailableError):
            verifier.verify(issuer.token())
        assert server.drops < 1000, "the client itself gives up after 9,000"
        server.drips = False
        verifier.clock.advance(10)
        assert verifier.verify(issuer.token()).name == "ada"
    finally:
        server.drips = False
        verifier.close()
        server.close()


def test_tokens_cannot_be_judged_without_keys(issuer: Issuer, tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    verifier = Verifier(file.as_uri())
    for content in (None, b"{", b"[]", b'{"keys": []}', b'{"keys": [{"kty": "oct", "k": "c2VjcmV0"}]}'):
        if content is not None:
            file.write_bytes(content)
        with pytest.raises(LoginUnavailableError):
            verifier.verify(issuer.token())
        verifier.clock.advance(10)
    file.write_bytes(issuer.key_set())
    assert verifier.verify(issuer.token()).name == "ada"
    verifier.close()


@pytest.mark.parametrize(
    "url",
    [
        "http://issuer.test/keys",
        "https://user:secret@issuer.test/",
        "ftp://x/",
        "file:keys",
        "/keys",
        "https://",
    ],
)
def test_keys_are_read_only_from_where_they_can_be_trusted(url: str) -> None:
    with pytest.raises(InvalidInputError, match="sasl_oauthbearer_jwks_endpoint_url") as caught:
        Verifier(url)
    assert "secret" not in str(caught.value)


def test_issuer_and_audience_must_be_set() -> None:
    with pytest.raises(InvalidInputError, match="sasl_oauthbearer_expected_issuer"):
        AuthenticationSettings(sasl_oauthbearer_jwks_endpoint_url="https://issuer.test/")
    with pytest.raises(InvalidInputError, match="sasl_oauthbearer_expected_audience"):
        AuthenticationSettings(
            sasl_oauthbearer_jwks_endpoint_url="https://issuer.test/", sasl_oauthbearer_expected_issuer="x"
        )
