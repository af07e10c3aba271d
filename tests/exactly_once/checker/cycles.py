"""Cycles of dependencies between committed transactions: Adya's G0 and G1c.

- ww: T1 wrote to a partition directly before T2. The same holds within the transactions of one process.
- wr: T2 consumed a record that T1 wrote.

Kafka orders the records of each partition, and does not isolate the writers. So two concurrent transactions
may write in different orders to two partitions. Jepsen allows all cycles with such an edge, and so does
`ALLOWED`. A cycle without one is a violation: edges between transactions have an order in time if one ended
before the other began, and so have edges of consumed records.
"""

from __future__ import annotations

from collections import defaultdict, deque
from itertools import pairwise
from typing import TYPE_CHECKING

from tests.exactly_once.checker.anomalies import Anomaly, Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from tests.exactly_once.checker.facts import Facts
    from tests.exactly_once.checker.history import Transaction

Edge = tuple[str, str]
Graph = dict[str, set[str]]


def cycles_of(facts: Facts) -> Iterator[Anomaly]:
    """Yield one cycle for each strongly connected component, of the narrowest kind that has it."""
    transactions = facts.history.transactions
    writes, reads = _write_edges(facts), _read_edges(facts)
    ordered = {edge for edge in writes if not _overlap(*(transactions[name] for name in edge))}
    known: set[frozenset[str]] = set()
    for kind, edges in (
        (Kind.G0, ordered),
        (Kind.G1C, ordered | reads),
        (Kind.CONCURRENT_G0, writes),
        (Kind.CONCURRENT_G1C, writes | reads),
    ):
        graph = _graph(edges)
        for component in components(graph):
            cycle = _shortest_cycle(graph, component)
            if frozenset(cycle) not in known:
                known.add(frozenset(cycle))
                yield Anomaly(kind, " → ".join([*cycle, cycle[0]]))


def _write_edges(facts: Facts) -> set[Edge]:
    edges: set[Edge] = set()
    for log in facts.logs.values():
        writers = [writer for send in log if facts.has_committed(writer := facts.writer[send.value])]
        by_process: Mapping[str, list[Transaction]] = defaultdict(list)
        for writer in writers:
            by_process[writer.process].append(writer)
        for order in (writers, *by_process.values()):
            edges |= {(one.name, other.name) for one, other in pairwise(order) if one is not other}
    return edges


def _read_edges(facts: Facts) -> set[Edge]:
    return {
        (facts.writer[record.value].name, transaction.name)
        for transaction in facts.committed()
        for record in transaction.reads
        if record.value in facts.writer
    }


def _overlap(one: Transaction, other: Transaction) -> bool:
    """Return True unless one has ended before the other began."""
    first, second = sorted((one, other), key=lambda each: each.began)
    return first.ended is None or first.ended > second.began


def _graph(edges: Iterable[Edge]) -> Graph:
    graph: Graph = defaultdict(set)
    for one, other in edges:
        graph[one].add(other)
        graph[other]  # every node has an entry
    return dict(graph)


def components(graph: Graph) -> list[list[str]]:
    """Return the strongly connected components that contain a cycle (Kosaraju's algorithm)."""
    reverse = _graph((other, one) for one, others in graph.items() for other in others)
    seen: set[str] = set()
    finished = [node for start in graph for node in _finished_from(start, graph, seen)]
    seen = set()
    found = [_reached_from(node, lambda each: reverse.get(each, set()), seen) for node in reversed(finished)]
    return [each for each in found if len(each) > 1 or (each and each[0] in graph[each[0]])]


def _finished_from(start: str, graph: Graph, seen: set[str]) -> list[str]:
    """Return the new nodes that a depth-first search reaches, in the order in which it leaves them."""
    if start in seen:
        return []
    seen.add(start)
    order: list[str] = []
    path = [(start, iter(sorted(graph[start])))]
    while path:
        node, others = path[-1]
        step = next((other for other in others if other not in seen), None)
        if step is None:
            path.pop()
            order.append(node)
        else:
            seen.add(step)
            path.append((step, iter(sorted(graph[step]))))
    return order


def _reached_from(start: str, others: Callable[[str], set[str]], seen: set[str]) -> list[str]:
    if start in seen:
        return []
    seen.add(start)
    found, waiting = [], [start]
    while waiting:
        node = waiting.pop()
        found.append(node)
        new = others(node) - seen
        seen |= new
        waiting.extend(sorted(new))
    return found


def _shortest_cycle(graph: Graph, component: Sequence[str]) -> list[str]:
    """Return the shortest cycle through the least node of a component."""
    inside, start = set(component), min(component)
    before: dict[str, str] = {}
    waiting = deque([start])
    while waiting:
        node = waiting.popleft()
        if start in graph[node]:
            path = [node]
            while path[-1] != start:
                path.append(before[path[-1]])
            return path[::-1]
        for other in sorted(graph[node] & inside - before.keys()):
            before[other] = node
            waiting.append(other)
    raise AssertionError(component)
