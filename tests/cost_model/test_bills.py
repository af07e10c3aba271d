"""Prices and bills."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from core.errors import InvalidInputError
from cost_model.engine.rounds import simulate_rounds
from cost_model.report.bill import kafka_bill, siltstone_bill
from cost_model.report.prices import GIB, load_prices
from tests.cost_model.small import MIXED, SETTINGS

if TYPE_CHECKING:
    from pathlib import Path

    from cost_model.engine.outcome import Outcome


@pytest.fixture(scope="module")
def outcome() -> Outcome:
    return simulate_rounds(MIXED, SETTINGS)


def test_storage_is_priced_in_steps() -> None:
    """The first 50 TB have one price, the next 450 TB another."""
    store = load_prices().s3_standard
    assert store.storage(1000 * GIB) == pytest.approx(23.0)
    assert store.storage(61_200 * GIB) == pytest.approx(51_200 * 0.023 + 10_000 * 0.022)


def test_prices_in_a_file_replace_list_prices(tmp_path: Path) -> None:
    """Other prices do not change."""
    file = tmp_path / "prices.toml"
    file.write_text("region = 'here'\n[s3_standard]\nput_thousand = 1\nsource = 'a contract'\n")
    prices = load_prices(file)
    assert (prices.region, prices.s3_standard.put_thousand, prices.s3_standard.get_thousand) == (
        "here",
        1.0,
        load_prices().s3_standard.get_thousand,
    )
    assert prices.sources["s3_standard"].startswith("a contract")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[s3_standart]", "did you mean s3_standard"),
        ("[s3_standard]\nget_thousands = 1", "did you mean get_thousand"),
        ("[s3_standard]\nput_thousand = 'dear'", "put_thousand is 'dear'"),
        ("put = ", "is not TOML"),
    ],
)
def test_invalid_price_files_are_rejected(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "prices.toml"
    file.write_text(text)
    with pytest.raises(InvalidInputError, match=message):
        load_prices(file)


def test_kafka_bill_follows_the_documented_formula(outcome: Outcome) -> None:
    """Disks hold three replicas and are 60 % full; traffic to other zones has a price."""
    bill = kafka_bill(outcome, load_prices(), follower_fetching=False)
    dollars = {line.term: line.dollars for line in bill.lines}
    stored = outcome.rates.stored_bytes * 730 * 3600 / GIB
    assert dollars["disks"] == pytest.approx(outcome.mean("live_bytes") / GIB * 3 / 0.6 * 0.08)
    assert dollars["producers to leaders, 2/3 from other zones"] == pytest.approx(stored * 2 / 3 * 0.02)
    assert dollars["replication, twice to other zones"] == pytest.approx(stored * 2 * 0.02)
    assert dollars["leaders to consumers, 2/3 in other zones"] == pytest.approx(stored * 2 / 3 * 0.02)
    assert dollars["brokers"] == pytest.approx(3 * 0.6528 * 730)
    nearby = kafka_bill(outcome, load_prices(), follower_fetching=True)
    assert bill.dollars - nearby.dollars == pytest.approx(stored * 2 / 3 * 0.02)


def test_requests_are_priced_by_kind(outcome: Outcome) -> None:
    """PUT, upload parts and LIST have one price, GET another; Express One Zone also charges for bytes."""
    prices, month = load_prices(), outcome.month
    standard = {line.term: line.dollars for line in siltstone_bill(outcome, prices, express=False).lines}
    assert standard["PUT by agents"] == pytest.approx(month.put_ingest * 0.005 / 1000)
    assert standard["LIST by garbage collection"] == pytest.approx(month.list_gc * 0.005 / 1000)
    assert standard["GET for consumers"] == pytest.approx(month.get_fetch * 0.0004 / 1000)
    assert standard["traffic between zones"] == 0
    express = {line.term: line.dollars for line in siltstone_bill(outcome, prices, express=True).lines}
    written = (month.ingested_bytes + month.written_bytes) / GIB
    assert express["bytes uploaded"] == pytest.approx(written * 0.0032)
