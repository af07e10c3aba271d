"""Parse the JSON of a produce request into columns of records, and render the results as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING

import orjson
from pydantic import ValidationError

from agent.http.errors import InvalidBodyError
from agent.http.models import PRODUCE_BODY
from agent.http.records.producer import NewRecords, Rejection
from agent.http.records.text_or_base64 import get_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agent.http.models import HeaderBody, RecordBody
    from agent.http.records.producer import Headers, ProducedRecords

_MAX_PROBLEMS = 5
# pydantic describes either all problems or none, and holds the GIL meanwhile.
_MAX_EXPLAINED = 10_000


def parse_records(body: bytes) -> NewRecords:
    """Return the records of a request body. Runs in the parsing pool.

    Raises `InvalidBodyError` if the body does not have the documented form. Invalid base64 rejects only its
    record.
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
            records.rejections[index] = Rejection("invalid_base64", str(error))
    return records


def _headers(record: RecordBody) -> Headers:
    given: Sequence[HeaderBody] = record.get("headers", ())
    return tuple((header["key"], get_bytes(header, "value")) for header in given)


def _explain(error: ValidationError) -> str:
    if error.error_count() > _MAX_EXPLAINED:
        return f"the body has {error.error_count()} problems"
    problems = error.errors(include_url=False, include_input=False)
    shown = [
        f"{'.'.join(map(str, problem['loc'])) or 'body'}: {problem['msg']}"
        for problem in problems[:_MAX_PROBLEMS]
    ]
    more = f" (and {len(problems) - len(shown)} more)" if len(problems) > len(shown) else ""
    return "; ".join(shown) + more


def render_results(produced: ProducedRecords) -> bytes:
    """Return the response to a produce request, one result per line. Runs in the kernel pool."""
    rejections = produced.rejections
    lines = [
        orjson.dumps({"error": {"code": rejections[index].code, "message": rejections[index].message}})
        if index in rejections
        else b'{"partition":%d,"offset":%d,"timestamp":%d}' % appended
        for index, appended in enumerate(
            zip(
                produced.partitions.tolist(),
                produced.offsets.tolist(),
                produced.timestamps.tolist(),
                strict=True,
            )
        )
    ]
    head = {"accepted": produced.accepted, "rejected": len(rejections), **_overall_error(produced)}
    opening = orjson.dumps(head)[:-1] + b',"results":['
    return opening + (b"\n" if lines else b"") + b",\n".join(lines) + (b"\n" if lines else b"") + b"]}\n"


def _overall_error(produced: ProducedRecords) -> dict[str, object]:
    """Return an error for clients that only check the status, if no record was appended."""
    if produced.accepted or not produced.rejections:
        return {}
    first = min(produced.rejections)
    rejection = produced.rejections[first]
    return {
        "error": {
            "code": rejection.code,
            "message": f"no record was appended; record {first}: {rejection.message}",
        }
    }
