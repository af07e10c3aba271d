"""AlterUserScramCredentials (KIP-554): sets and deletes SCRAM credentials of users.

Version 0. The client salts the password, and the catalog stores keys that are derived from it. All valid
changes of a request are one transaction. The response has one result for each user.

As KIP-554 states, a request may change each mechanism of a user once; a second change is DUPLICATE_RESOURCE
and leaves the user unchanged. KRaft controllers allow only one change for each user.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from agent.kafka.api_definition import Api
from agent.kafka.authorization import require
from agent.kafka.codec import Struct
from agent.kafka.errors import ErrorCode, KafkaError, code_of, message_of
from agent.security.rights import ALTER_CLUSTER
from catalog.security.scram import ScramMechanism, check_user_name, credential_from_salted
from catalog.security.users import CredentialKey
from core.errors import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from agent.kafka.api_definition import RequestContext
    from catalog.security.scram import ScramCredential


@dataclass(slots=True)
class _Changes:
    """The valid changes of one request, and the first error of each user that has one."""

    deletions: list[CredentialKey] = field(default_factory=list)
    upsertions: list[tuple[str, ScramCredential]] = field(default_factory=list)
    errors: dict[str, Exception] = field(default_factory=dict)

    def leave_out_failed(self) -> None:
        """Leave users with an error unchanged."""
        self.deletions = [each for each in self.deletions if each.user not in self.errors]
        self.upsertions = [each for each in self.upsertions if each[0] not in self.errors]


async def handle(request: Struct, context: RequestContext) -> Struct:
    """Apply the valid changes, and report each user."""
    require(context, ALTER_CLUSTER)
    changes = _read(request)
    if changes.deletions or changes.upsertions:
        users = context.services.catalog.users
        alter = partial(users.alter, deletions=changes.deletions, upsertions=changes.upsertions)
        for key in await context.services.pools.catalog.run(alter):
            changes.errors[key.user] = KafkaError(
                ErrorCode.resource_not_found, "Attempt to delete a user credential that does not exist"
            )
    return Struct(results=[_result(user, changes.errors.get(user)) for user in _users(request)])


def _read(request: Struct) -> _Changes:
    changes = _Changes()
    counts = Counter([(each.name, each.mechanism) for each in (*request.deletions, *request.upsertions)])
    for each in request.deletions:
        try:
            changes.deletions.append(CredentialKey(each.name, _mechanism(each, counts)))
        except (InvalidInputError, KafkaError) as error:
            changes.errors.setdefault(each.name, error)
    for each in request.upsertions:
        try:
            mechanism = _mechanism(each, counts)
            credential = credential_from_salted(
                mechanism, bytes(each.salted_password), bytes(each.salt), each.iterations
            )
            changes.upsertions.append((each.name, credential))
        except (InvalidInputError, KafkaError) as error:
            changes.errors.setdefault(each.name, error)
    changes.leave_out_failed()
    return changes


def _mechanism(item: Struct, counts: Counter[tuple[str, int]]) -> ScramMechanism:
    """Check what deletions and upsertions have in common, and return the mechanism."""
    if counts[item.name, item.mechanism] > 1:
        raise KafkaError(
            ErrorCode.duplicate_resource, "A user credential cannot be altered twice in the same request"
        )
    check_user_name(item.name)
    try:
        return ScramMechanism(item.mechanism)
    except ValueError:
        raise KafkaError(ErrorCode.unsupported_sasl_mechanism, "Unknown SCRAM mechanism") from None


def _users(request: Struct) -> Iterable[str]:
    return dict.fromkeys([each.name for each in (*request.deletions, *request.upsertions)])


def _result(user: str, error: Exception | None) -> Struct:
    if error is None:
        return Struct(user=user)
    return Struct(user=user, error_code=code_of(error), error_message=message_of(error))


def error_response(request: Struct, context: RequestContext, error: Exception) -> Struct:
    """Return the error for every user of the request."""
    del context
    rejected = {"error_code": code_of(error), "error_message": message_of(error)}
    return Struct(results=[Struct(**rejected, user=user) for user in _users(request)])


API = Api(
    name="alter_user_scram_credentials",
    min_version=0,
    max_version=0,
    handle=handle,
    error_response=error_response,
    max_items=2_000,
)
