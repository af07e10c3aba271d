"""ListTransactions (KIP-664): lists the transactional ids that this agent coordinates.

Admin clients ask every agent. Versions 0 to 2. Version 1 added the filter by duration, version 2 the pattern
of transactional ids.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from agent.groups.consumer.topics import MAX_MATCH_STEPS, compile_pattern
from agent.kafka.api_definition import Api
from agent.kafka.apis.transactions.requests import transaction_code_of
from agent.kafka.apis.transactions.states import STATE_NAMES
from agent.kafka.authorization import is_allowed_quietly
from agent.kafka.codec import Struct
from agent.kafka.errors import ErrorCode, KafkaError
from agent.runtime.cooperative_yield import CooperativeYield
from agent.security.rights import DESCRIBE_TRANSACTION
from core.errors import SiltstoneError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Mapping

    from agent.groups.consumer.topics import Pattern
    from agent.kafka.api_definition import RequestContext
    from catalog.transactions.rules import TransactionalProducer

_NO_FILTER = -1
_PAGE = 1000


async def handle(request: Struct, context: RequestContext) -> Struct:
    """List the transactional ids that match the filters of the request."""
    unknown = [state for state in request.state_filters if state not in STATE_NAMES.values()]
    text = request.transactional_id_pattern
    try:
        found = await _list(request, compile_pattern(text) if text else None, context)
    except SiltstoneError as error:
        code = transaction_code_of(error, knows_fencing=True)
        return Struct(error_code=code, unknown_state_filters=[], transaction_states=[])
    return Struct(unknown_state_filters=unknown, transaction_states=found)


async def _list(request: Struct, pattern: Pattern | None, context: RequestContext) -> list[Struct]:
    services = context.services
    now_ms = services.clock.now_ms()
    yielding, found, after, steps = CooperativeYield(), [], "", 0
    while True:
        page = await services.pools.catalog.run(
            partial(services.catalog.transaction_lookups.page, after, limit=_PAGE)
        )
        candidates = {}
        for transactional_id, producer in page:
            if _matches(request, producer, now_ms) and is_allowed_quietly(
                context, DESCRIBE_TRANSACTION, transactional_id
            ):
                candidates[transactional_id] = producer
            await yielding.step()
        if pattern is not None:
            steps += _steps(pattern, candidates)
            if steps > MAX_MATCH_STEPS:
                raise KafkaError(ErrorCode.invalid_regular_expression, "the pattern is too complex")
            candidates = await services.pools.parsing.run(partial(_matching, pattern, candidates))
        found += [each async for each in _own(candidates, context)]
        if len(page) < _PAGE:
            return found
        after = page[-1][0]


async def _own(
    producers: Mapping[str, TransactionalProducer], context: RequestContext
) -> AsyncIterator[Struct]:
    """Yield the descriptions of the producers that this agent coordinates."""
    brokers = context.services.brokers
    for transactional_id, producer in producers.items():
        coordinator = await brokers.coordinator(transactional_id)
        if coordinator.node_id == brokers.own.node_id:
            yield Struct(
                transactional_id=transactional_id,
                producer_id=producer.producer_id,
                transaction_state=STATE_NAMES[producer.state],
            )


def _steps(pattern: Pattern, transactional_ids: Iterable[str]) -> int:
    """Return how many steps the pattern may take; each takes up to 4 ns."""
    return pattern.programsize * sum(len(each.encode()) for each in transactional_ids)


def _matching(
    pattern: Pattern, producers: Mapping[str, TransactionalProducer]
) -> dict[str, TransactionalProducer]:
    return {name: each for name, each in producers.items() if pattern.fullmatch(name) is not None}


def _matches(request: Struct, producer: TransactionalProducer, now_ms: int) -> bool:
    if request.state_filters and STATE_NAMES[producer.state] not in request.state_filters:
        return False
    if request.producer_id_filters and producer.producer_id not in request.producer_id_filters:
        return False
    if request.duration_filter == _NO_FILTER:
        return True
    return producer.started_ms is not None and now_ms - producer.started_ms > request.duration_filter


API = Api(name="list_transactions", min_version=0, max_version=2, handle=handle)
