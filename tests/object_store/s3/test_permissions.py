"""The policy of `docs/how-to/production.md` allows what Siltstone does, and nothing more.

Moto enforces policies here. Unlike S3, it checks the bucket and not the objects in a request that deletes
several, and reports a missing object as missing to everybody.
"""

from __future__ import annotations

import json
import re
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.request import Request, urlopen

import pytest

from core.clock import ManualClock
from core.ids import SystemIds
from object_store.errors import StoreAccessError
from object_store.open import open_store
from object_store.s3.client import new_session
from object_store.trial import try_store
from tests.fixtures.s3 import REGION, bucket_of, needs_moto

if TYPE_CHECKING:
    from collections.abc import Iterator

    from object_store.interface import ObjectStore
    from object_store.open import StoreConfig
    from object_store.trial import TrialResult
    from tests.fixtures.s3 import S3Server

pytestmark = needs_moto

_GUIDE: Final = Path(__file__).parents[3] / "docs" / "how-to" / "production.md"
_FOUND: Final = re.search(r"```json\n(.*?)```", _GUIDE.read_text(), re.DOTALL)
assert _FOUND is not None
_POLICY: Final[dict[str, Any]] = json.loads(_FOUND[1])
_ACTIONS: Final[list[str]] = [action for each in _POLICY["Statement"] for action in each["Action"]]
_USER: Final = "siltstone"


def _policy(bucket: str, without: str | None) -> str:
    """Return the guide's policy for a bucket of these tests, without one action."""
    text = json.dumps(_POLICY).replace(":::logs/siltstone/*", f":::{bucket}/some/prefix/*")
    policy = json.loads(text.replace(":::logs", f":::{bucket}"))
    objects, bucket_itself = policy["Statement"]
    bucket_itself["Action"].append("s3:DeleteObject")  # Moto checks the bucket
    for statement in (objects, bucket_itself):
        statement["Action"] = [each for each in statement["Action"] if each != without]
    return json.dumps(policy)


def _enforce(server: S3Server, free_requests: str) -> None:
    request = Request(
        f"{server.endpoint}/moto-api/reset-auth",
        data=free_requests.encode(),
        headers={"Content-Type": "text/plain"},  # Moto takes another body for a form
    )
    with urlopen(request, timeout=240):
        pass


@contextmanager
def store_with_policy(
    server: S3Server, config: StoreConfig, patch: pytest.MonkeyPatch, without: str | None
) -> Iterator[ObjectStore]:
    """Provide a store whose user has the guide's policy without one action."""
    iam = new_session().client("iam", endpoint_url=server.endpoint, region_name=REGION)
    iam.create_user(UserName=_USER)
    iam.put_user_policy(
        UserName=_USER, PolicyName="guide", PolicyDocument=_policy(bucket_of(config), without)
    )
    key = iam.create_access_key(UserName=_USER)["AccessKey"]
    with patch.context() as environment:
        environment.setenv("AWS_ACCESS_KEY_ID", key["AccessKeyId"])
        environment.setenv("AWS_SECRET_ACCESS_KEY", key["SecretAccessKey"])
        clock = ManualClock()
        _enforce(server, "0")
        try:
            with closing(open_store(config, clock, SystemIds(clock))) as store:
                yield store
        finally:
            _enforce(server, "inf")
            iam.delete_access_key(UserName=_USER, AccessKeyId=key["AccessKeyId"])
            iam.delete_user_policy(UserName=_USER, PolicyName="guide")
            iam.delete_user(UserName=_USER)
            iam.close()


def _trial(store: ObjectStore) -> list[TrialResult]:
    return try_store(store, SystemIds(ManualClock()), is_s3=True)


def test_the_policy_of_the_guide_allows_every_operation(
    s3_server: S3Server, s3_config: StoreConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    with store_with_policy(s3_server, s3_config, monkeypatch, None) as store:
        store.check()
        results = _trial(store)

    assert [each.problem for each in results] == [None] * len(results)
    assert {action for each in results for action in each.permissions} == set(_ACTIONS)


@pytest.mark.parametrize("action", _ACTIONS)
def test_without_one_action_the_operations_fail_that_need_it(
    s3_server: S3Server, s3_config: StoreConfig, monkeypatch: pytest.MonkeyPatch, action: str
) -> None:
    with store_with_policy(s3_server, s3_config, monkeypatch, action) as store:
        results = _trial(store)
        if action == "s3:ListBucket":
            with pytest.raises(StoreAccessError, match="AccessDenied"):
                store.check()

    denied = {each.operation for each in results if "AccessDenied" in (each.problem or "")}
    needs = {each.operation for each in results if action in each.permissions}
    assert denied
    assert denied <= needs
    if action != "s3:DeleteObject":  # a refused delete lists the server's reasons
        problems = [each.problem for each in results if each.operation in denied]
        assert all(each is not None and f"allow these credentials {action} " in each for each in problems)
    if action != "s3:ListBucket":  # Moto needs it for lists only
        assert denied == needs
