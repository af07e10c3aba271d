"""From the JSON of a produce request to columns of records, and from their results back to JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING

import orjson
from pydantic import ValidationError

from agent.http.errors import InvalidBodyError
from agent.http.models import PRODUCE_BODY
from agent.http.record_producer import NewRecords, RecordRefusal
from agent.http.text_or_base64 import get_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agent.http.models import HeaderBody, RecordBody
    from agent.http.record_producer import Headers, ProducedRecords

_MAX_PROBLEMS = 5


def parse_records(body: bytes) -> NewRecords:
    """The records of a request body, for the kernel pool.

    Raises `InvalidBodyError` for what is not of the documented form. Base64 that is none is the problem of
    its record alone.
    """
    try:
        bodies = PRODUCE_BODY.validate_json(body)["records"]
    except ValidationError as error:
        raise InvalidBodyError(_explain(error), remedy='send {"records": [{"key": …, "value": …}]}') from None
    records = NewRecords(
        keys=[None] * len(bodies),
        values=[None] * len(bodies),
        timestamps=[record.get("timestamp") for record in bodies],
        partitions=[record.get("partition") for record in bodies],
        headers=[()] * len(bodies) if any(record.get("headers") for record in bodies) else None,
    )
    for index, record in enumerate(bodies):
        try:
            records.keys[index] = get_bytes(record, "key")
            records.values[index] = get_bytes(record, "value")
            if records.headers is not None:
                records.headers[index] = _headers(record)
        except ValueError as error:
            records.refusals[index] = RecordRefusal("invalid_base64", str(error))
    return records


def _headers(record: RecordBody) -> Headers:
    given: Sequence[HeaderBody] = record.get("headers", ())
    return tuple((header["key"], get_bytes(header, "value")) for header in given)


def _explain(error: ValidationError) -> str:
    problems = error.errors(include_url=False, include_input=False)
    shown = [
        f"{'.'.join(map(str, problem['loc'])) or 'body'}: {problem['msg']}"
        for problem in problems[:_MAX_PROBLEMS]
    ]
    more = f" (and {len(problems) - len(shown)} more)" if len(problems) > len(shown) else ""
    return "; ".join(shown) + more


def render_results(produced: ProducedRecords) -> bytes:
    """The answer to a produce request, one result on each line; for the kernel pool."""
    refusals = produced.refusals
    lines = [
        orjson.dumps({"error": {"code": refusals[index].code, "message": refusals[index].message}})
        if index in refusals
        else b'{"partition":%d,"offset":%d,"timestamp":%d}' % place
        for index, place in enumerate(
            zip(
                produced.partitions.tolist(),
                produced.offsets.tolist(),
                produced.timestamps.tolist(),
                strict=True,
            )
        )
    ]
    head = {"accepted": produced.accepted, "refused": len(refusals), **_overall(produced)}
    opening = orjson.dumps(head)[:-1] + b',"results":['
    return opening + (b"\n" if lines else b"") + b",\n".join(lines) + (b"\n" if lines else b"") + b"]}\n"


def _overall(produced: ProducedRecords) -> dict[str, object]:
    """What clients that look at the status alone should say when nothing was taken."""
    if produced.accepted or not produced.refusals:
        return {}
    first = min(produced.refusals)
    refusal = produced.refusals[first]
    return {
        "error": {
            "code": refusal.code,
            "message": f"no record was appended; record {first}: {refusal.message}",
        }
    }
