"""Anomalies that tests plant into correct histories.

A plant changes the events of a history so that one promise is broken. It returns False if the history offers
no opportunity. `pick` chooses one of several opportunities.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tests.exactly_once.checker.anomalies import Kind
from tests.exactly_once.checker.model import GROUP

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.exactly_once.checker.history import Event

Pick = Callable[[list[Any]], Any]
"""Chooses one of several opportunities."""


def _of(events: list[Event], kind: str) -> list[Event]:
    return [event for event in events if event["event"] == kind]


def _ended(events: list[Event], outcome: str) -> list[str]:
    return [event["transaction"] for event in _of(events, "end") if event["outcome"] == outcome]


def _sends(events: list[Event], transactions: list[str]) -> list[Event]:
    return [event for event in _of(events, "send") if event["transaction"] in transactions]


def _read_places(events: list[Event]) -> Iterator[tuple[Event, list[Any]]]:
    for poll in _of(events, "poll"):
        for record in poll["records"]:
            yield poll, record


def _drop(events: list[Event], value: str) -> None:
    """Remove a value from all polls and all input."""
    for event in events:
        for name in ("records", "reads"):
            if name in event:
                event[name] = [record for record in event[name] if record[2] != value]


def lose_write(events: list[Event], pick: Pick) -> bool:
    """Let no reader find an acknowledged record of a committed transaction."""
    acknowledged = {event["value"] for event in _of(events, "sent")}
    sends = [e for e in _sends(events, _ended(events, "committed")) if e["value"] in acknowledged]
    if sends:
        _drop(events, pick(sends)["value"])
    return bool(sends)


def lose_last_write(events: list[Event], pick: Pick) -> bool:
    """The same for a record without a known offset: the reader has read to the end of its partition."""
    sends = _sends(events, _ended(events, "committed"))
    if not sends:
        return False
    value = pick(sends)["value"]
    events[:] = [e for e in events if not (e["event"] == "sent" and e["value"] == value)]
    _drop(events, value)
    return True


def lose_input(events: list[Event], pick: Pick) -> bool:
    """Let a committed transaction of the group not have consumed one of its records."""
    committed = _ended(events, "committed")
    begins = [e for e in _of(events, "begin") if e["transaction"] in committed and e.get("reads")]
    if begins:
        begin = pick(begins)
        begin["reads"] = begin["reads"][1:]
    return bool(begins)


def consume_twice(events: list[Event], pick: Pick) -> bool:
    """Let another committed transaction consume the same record."""
    committed = _ended(events, "committed")
    begins = [e for e in _of(events, "begin") if e["transaction"] in committed]
    sources = [e for e in begins if e.get("reads")]
    if not sources or len(begins) < 2:
        return False
    source = pick(sources)
    other = pick([e for e in begins if e is not source])
    other["group"] = GROUP
    other["reads"] = [*other.get("reads", []), source["reads"][0]]
    return True


def read_aborted(events: list[Event], pick: Pick) -> bool:
    """Let the last poll find a record of an aborted transaction."""
    return _read_more(events, _sends(events, _ended(events, "aborted")), pick)


def read_abandoned(events: list[Event], pick: Pick) -> bool:
    """Let the last poll find a record of a transaction whose commit was never invoked."""
    invoked = {e["transaction"] for e in _of(events, "commit")} | set(_ended(events, "aborted"))
    return _read_more(events, [e for e in _of(events, "send") if e["transaction"] not in invoked], pick)


def _read_more(events: list[Event], sends: list[Event], pick: Pick) -> bool:
    acknowledged = {event["value"]: event["offset"] for event in _of(events, "sent")}
    sends = [event for event in sends if event["value"] in acknowledged]
    polls = _of(events, "poll")
    if not sends or not polls:
        return False
    send = pick(sends)
    polls[-1]["records"].append([send["partition"], acknowledged[send["value"]], send["value"]])
    return True


def read_too_early(events: list[Event], pick: Pick) -> bool:
    """Let a poll return before the commit of what it found had begun."""
    commits = {e["transaction"]: e for e in _of(events, "commit")}
    found = [
        (poll, commits[name])
        for poll, record in _read_places(events)
        if (name := record[2].split(".")[0]) in commits
    ]
    if found:
        poll, commit = pick(found)
        commit["at"] = poll["at"] + 0.5
        for end in _of(events, "end"):
            if end["transaction"] == commit["transaction"]:
                end["at"] = max(end["at"], poll["at"] + 0.6)
        events.sort(key=lambda event: event["at"])
    return bool(found)


def read_unsent(events: list[Event], pick: Pick) -> bool:
    """Let a poll find a value that no client has sent, in place of another one."""
    found = list(_read_places(events))
    if found:
        pick(found)[1][2] = "unsent"
    return bool(found)


def read_part(events: list[Event], pick: Pick) -> bool:
    """Let one reader miss a record of a transaction, although it saw others of the transaction."""
    return _miss(events, pick, keeps_some=True)


def skip_all(events: list[Event], pick: Pick) -> bool:
    """Let one reader miss a whole transaction, and read what follows."""
    return _miss(events, pick, keeps_some=False)


def _miss(events: list[Event], pick: Pick, *, keeps_some: bool) -> bool:
    """Remove records of one transaction from the polls of a reader that has read past them."""
    committed = _ended(events, "committed")
    opportunities = []
    for reader in sorted({poll["process"] for poll in _of(events, "poll")}):
        polls = [poll for poll in _of(events, "poll") if poll["process"] == reader]
        records = [record for poll in polls for record in poll["records"]]
        ends = {partition: offset for partition, offset, _ in records}
        for name in committed:
            own = [record for record in records if record[2].startswith(f"{name}.")]
            # Records at the end of what the reader saw would not be missed, but only not be read yet.
            if any(ends[partition] == offset for partition, offset, _ in own) or not own:
                continue
            if not keeps_some:
                opportunities.append((polls, own))
            elif len(own) > 1:
                opportunities.append((polls, own[:1]))
    if not opportunities:
        return False
    polls, missed = pick(opportunities)
    for poll in polls:
        poll["records"] = [record for record in poll["records"] if record not in missed]
    return True


def duplicate(events: list[Event], pick: Pick) -> bool:
    """Let the last poll find a record at another offset again."""
    found = list(_read_places(events))
    if found:
        _, (partition, offset, value) = pick(found)
        _of(events, "poll")[-1]["records"].append([partition, offset + 1000, value])
    return bool(found)


def acknowledge_elsewhere(events: list[Event], pick: Pick) -> bool:
    """Let an acknowledgement have another offset than the one that readers see."""
    values = {record[2] for _, record in _read_places(events)}
    found = [e for e in _of(events, "sent") if e["value"] in values]
    if found:
        pick(found)["offset"] += 1000
    return bool(found)


def share_offset(events: list[Event], pick: Pick) -> bool:
    """Let readers see another value at the offset of a record."""
    acknowledged = {event["value"]: event["offset"] for event in _of(events, "sent")}
    found = [
        (record, send)
        for _, record in _read_places(events)
        for send in _of(events, "send")
        if send["partition"] == record[0]
        and send["value"] in acknowledged
        and acknowledged[send["value"]] != record[1]
    ]
    if found:
        record, send = pick(found)
        record[2] = send["value"]
    return bool(found)


def reorder(events: list[Event], pick: Pick) -> bool:
    """Exchange two records of a partition; one was acknowledged before the other was sent."""
    sent = {event["value"]: event for event in _of(events, "sent")}
    sends = {event["value"]: event for event in _of(events, "send")}
    pairs = [
        (one, other)
        for one in sent
        for other in sent
        if sends[one]["partition"] == sends[other]["partition"] and sent[one]["at"] < sends[other]["at"]
    ]
    if not pairs:
        return False
    one, other = pick(pairs)
    places = {one: sent[other]["offset"], other: sent[one]["offset"]}
    for value, offset in places.items():
        sent[value]["offset"] = offset
    for poll in _of(events, "poll"):
        for record in poll["records"]:
            record[1] = places.get(record[2], record[1])
    return True


def mix_poll(events: list[Event], pick: Pick) -> bool:
    """Exchange two records of a partition within a poll."""
    found = [
        (poll, at)
        for poll in _of(events, "poll")
        for at in range(len(poll["records"]) - 1)
        if poll["records"][at][0] == poll["records"][at + 1][0]
    ]
    if found:
        poll, at = pick(found)
        records = poll["records"]
        records[at], records[at + 1] = records[at + 1], records[at]
    return bool(found)


def go_back(events: list[Event], pick: Pick) -> bool:
    """Repeat a poll of a reader."""
    found = _of(events, "poll")
    if found:
        poll = pick(found)
        events.insert(events.index(poll) + 1, dict(poll))
    return bool(found)


PLANTS: list[tuple[Callable[[list[Event], Pick], bool], Kind]] = [
    (lose_write, Kind.LOST_WRITE),
    (lose_last_write, Kind.LOST_WRITE),
    (lose_input, Kind.LOST_INPUT),
    (consume_twice, Kind.CONSUMED_TWICE),
    (read_aborted, Kind.ABORTED_READ),
    (read_abandoned, Kind.DIRTY_READ),
    (read_too_early, Kind.DIRTY_READ),
    (read_unsent, Kind.NEVER_SENT),
    (read_part, Kind.PARTIAL_READ),
    (skip_all, Kind.SKIPPED),
    (duplicate, Kind.DUPLICATE),
    (acknowledge_elsewhere, Kind.DIVERGENT_OFFSET),
    (share_offset, Kind.DIVERGENT_OFFSET),
    (reorder, Kind.REORDERED),
    (mix_poll, Kind.NONMONOTONIC_POLL),
    (go_back, Kind.NONMONOTONIC_READER),
]
"""Each plant, and the kind of anomaly that the checker must find."""
