"""Each row of the table in docs/reference/authorization.md is enforced by a request that needs its right."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.agent.kafka.authorization.cases import (
    CASES,
    MEMBERS,
    REFUSALS,
    TOPIC,
    Case,
    codes,
    heartbeat,
    is_refused,
)
from tests.agent.kafka.authorization.principals import allow, refresh
from tests.agent.kafka.authorization.transaction_cases import TRANSACTION_CASES, addition, initialization
from tests.agent.kafka.wire import Wire

if TYPE_CHECKING:
    from tests.agent.kafka.brokers import BrokerThread

ALL_CASES = (*CASES, *TRANSACTION_CASES)
_PAGE = Path(__file__).parents[4] / "docs" / "reference" / "authorization.md"
_ROW = re.compile(r"^\| ([A-Z]\w+) \| (\w+) \| (Topic|Group|Cluster|TransactionalId) \| .* \|$", re.MULTILINE)


def _without(number: int) -> str:
    """Return the principal that lacks the right of a case, and has all others that it needs."""
    return f"without-{number}"


def _with(number: int) -> str:
    return f"with-{number}"


@pytest.fixture(scope="module")
def broker(secured: BrokerThread) -> BrokerThread:
    """Let two principals for each case have the rights of their names."""
    for name in (TOPIC, "doomed"):
        secured.create_topic(name)
    with Wire(secured.host_and_port, client_id="admin") as wire:
        (commit,) = [case.request for case in CASES if case.row == ("OffsetCommit", "Read", "Group")]
        wire.ask("offset_commit", 8, commit)
        wire.ask("consumer_group_heartbeat", 1, heartbeat(MEMBERS, "first"))
        producer = wire.ask("init_producer_id", 4, initialization())
        wire.ask("add_partitions_to_txn", 3, addition(producer.producer_id, producer.producer_epoch))
    bindings = []
    for number, case in enumerate(ALL_CASES):
        bindings += allow(_without(number), *case.others) + allow(_with(number), *case.others, case.right)
    secured.catalog.acls.add(bindings)
    refresh(secured)
    return secured


def test_the_page_has_a_row_for_each_case() -> None:
    assert set(_ROW.findall(_PAGE.read_text())) == {case.row for case in ALL_CASES}


@pytest.mark.parametrize(
    ("number", "case"), [*enumerate(ALL_CASES)], ids=["-".join(case.row) for case in ALL_CASES]
)
def test_a_request_needs_the_right_of_its_row(broker: BrokerThread, number: int, case: Case) -> None:
    def ask(principal: str) -> tuple[bool, set[int]]:
        with Wire(broker.host_and_port, client_id=principal) as wire:
            response = wire.ask(case.api, case.version, case.request)
        return case.sees(response) if case.sees else not is_refused(response), {*codes(response)}

    is_allowed, found = ask(_without(number))
    assert not is_allowed, found
    if case.sees is None:
        assert found & {*REFUSALS.values()} == {case.code or REFUSALS[case.row[2]]}
    is_allowed, found = ask(_with(number))
    assert is_allowed, found
