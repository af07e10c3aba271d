"""Authentication over HTTP: the same users and tokens as for Kafka clients."""

from __future__ import annotations

from base64 import b64encode
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import httpx
import pytest
from structlog.testing import capture_logs

from agent.authentication_settings import AuthenticationSettings
from agent.listeners import ClientAuth, HttpAuthentication, HttpListener, TlsSettings
from catalog.security.scram import ScramMechanism, new_credential
from core.errors import InvalidInputError
from tests.agent.security.token_issuer import AUDIENCE, ISSUER, Issuer
from tests.fixtures.certificates import Authority

if TYPE_CHECKING:
    import ssl
    from pathlib import Path

    from catalog.open import Catalog
    from core.ids import Ids
    from tests.agent.running_agents import Agents

pytestmark = pytest.mark.anyio
_PASSWORD = "planted:secret ü"
_BASIC, _BEARER = HttpAuthentication.BASIC, HttpAuthentication.BEARER


def _basic(name: str, password: str) -> dict[str, str]:
    return {"Authorization": f"Basic {b64encode(f'{name}:{password}'.encode()).decode()}"}


def _bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


async def test_requests_are_authenticated(agents: Agents, catalog: Catalog, ids: Ids, tmp_path: Path) -> None:
    issuer, thief = Issuer(), Issuer()
    keys = tmp_path / "keys.json"
    keys.write_bytes(issuer.key_set())
    catalog.users.alter(upsertions=[("ada", new_credential(ScramMechanism.SHA_256, _PASSWORD, ids))])
    listeners = (
        HttpListener(name="BOTH", port=0, authentication=(_BASIC, _BEARER)),
        HttpListener(name="TOKENS", port=0, authentication=(_BEARER,)),
        HttpListener(name="OPEN", port=0),
    )
    authentication = AuthenticationSettings(
        connection_failed_authentication_delay_ms=1,
        sasl_oauthbearer_jwks_endpoint_url=keys.as_uri(),
        sasl_oauthbearer_expected_issuer=ISSUER,
        sasl_oauthbearer_expected_audience=AUDIENCE,
    )
    async with AsyncExitStack() as opened:
        with capture_logs() as logs:
            running = await opened.enter_async_context(
                agents.running(http_listeners=listeners, authentication=authentication)
            )
            servers = {each.name: f"http://{each.address}" for each in running.agent.http.servers}
            clients = {
                name: await opened.enter_async_context(
                    httpx.AsyncClient(base_url=url, trust_env=False, timeout=60)
                )
                for name, url in servers.items()
            }
            both, tokens = clients["BOTH"], clients["TOKENS"]
            right = [_basic("ada", _PASSWORD), _bearer(issuer.token()), _bearer(issuer.token(issuer.rsa))]
            for headers in (*right, *right):
                assert (await both.get("/v1/topics", headers=headers)).status_code == 200
            calls = catalog.operation_counts()["users.lookup"].calls
            assert calls <= 2, "a user is cached"
            wrong = [
                {},
                _basic("ada", "wrong-secret"),
                _basic("eve", _PASSWORD),
                _basic("", _PASSWORD),
                _basic("ada", ""),
                {"Authorization": "Basic"},
                {"Authorization": "Basic !"},
                {"Authorization": f"Basic {b64encode(b'ada').decode()}"},
                {"Authorization": f"Basic {'A' * 20_000}"},
                {"Authorization": "Digest x"},
                _bearer(issuer.unsigned()),
                _bearer(thief.token()),
                _bearer(issuer.token(exp=1)),
                {"Authorization": "Bearer"},
            ]
            for headers in wrong:
                forged = {**headers, "X-Forwarded-For": "10.1.2.3"}
                response = await both.get("/v1/topics", headers=forged)
                assert response.status_code == 401, headers
                assert response.json()["error"]["code"] == "unauthorized"
                challenges = response.headers.get_list("WWW-Authenticate")
                assert [each.split()[0] for each in challenges] == ["Basic", "Bearer"]
            twice = [("Authorization", value) for each in right[:2] for value in each.values()]
            assert (await both.get("/v1/topics", headers=twice)).status_code == 401
            assert (await tokens.get("/v1/topics", headers=right[0])).status_code == 401
            forms = (
                "/livez/",
                "//livez",
                "/LIVEZ",
                "/livez%0A",
                "/livez%00",
                "/livez%2F..%2Fmetrics",
                "/?/livez",
            )
            for path in ("/metrics", "/docs", "/openapi.json", "/nothing", "/v1/topics/x/livez", *forms):
                assert (await tokens.get(path)).status_code == 401, path
                assert (await tokens.get(path, headers=right[1])).status_code != 401, path
            for path in ("/livez", "/readyz", "/healthz"):
                assert (await tokens.get(path)).status_code == 200
            assert (await clients["OPEN"].get("/v1/topics")).status_code == 200
            metrics = (await clients["OPEN"].get("/metrics")).text
    assert 'siltstone_authentications_total{mechanism="HTTP basic",outcome="failure"} 10.0' in metrics
    assert 'siltstone_authentications_total{mechanism="HTTP basic",outcome="success"} 2.0' in metrics
    failed = [each for each in logs if each["event"] == "a client failed to authenticate"]
    assert {each["listener"] for each in failed} == {"BOTH", "TOKENS"}
    assert {each["client"] for each in failed} == {"127.0.0.1"}, "a client does not choose its address"
    for secret in (_PASSWORD, "wrong-secret", b64encode(_PASSWORD.encode()).decode(), "eyJ"):
        assert secret not in repr(logs) + metrics


async def test_tokens_need_keys(agents: Agents) -> None:
    listener = HttpListener(port=0, authentication=(_BEARER,))
    with pytest.raises(InvalidInputError, match="sasl_oauthbearer_jwks_endpoint_url"):
        async with agents.running(http_listeners=(listener,)):
            pass


async def test_a_certificate_authenticates_unless_the_request_has_credentials(
    agents: Agents, catalog: Catalog, ids: Ids, tmp_path: Path
) -> None:
    """Credentials of a request come before the certificate of its connection, also if they are wrong."""
    catalog.users.alter(upsertions=[("ada", new_credential(ScramMechanism.SHA_256, _PASSWORD, ids))])
    authority = Authority(tmp_path)
    server, mason = authority.issue("server", "127.0.0.1"), authority.issue("mason")
    tls = TlsSettings(
        certificate=server.certificate,
        key=server.key,
        client_ca=authority.file,
        client_auth=ClientAuth.REQUESTED,
    )
    listener = HttpListener(port=0, authentication=(_BASIC,), tls=tls)
    quick = AuthenticationSettings(connection_failed_authentication_delay_ms=1)
    async with agents.running(
        http_listeners=(listener,),
        authentication=quick,
        authorizer_enable=True,
        super_users="User:CN=mason",
    ) as running:
        url = f"https://{running.agent.http.servers[0].address}"

        async def status(context: ssl.SSLContext, headers: dict[str, str]) -> int:
            async with httpx.AsyncClient(verify=context, trust_env=False, timeout=60) as client:
                return (await client.get(f"{url}/metrics", headers=headers)).status_code

        certified, anonymous = mason.context(authority), authority.context()
        assert await status(anonymous, {}) == 401
        assert await status(certified, {}) == 200
        assert await status(certified, _basic("ada", "wrong")) == 401
        assert await status(certified, _basic("ada", _PASSWORD)) == 403
        assert await status(anonymous, _basic("ada", _PASSWORD)) == 403
