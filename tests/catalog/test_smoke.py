from __future__ import annotations

from typing import TYPE_CHECKING

from catalog.model import BatchRun, FileCommit, SectionCommit

if TYPE_CHECKING:
    from bedrock.ids import Ids
    from catalog.open import Catalog


def test_commit(catalog: Catalog, ids: Ids) -> None:
    topic = catalog.topics.create("flights", 3, {"cleanup.policy": "compact"})
    session = ids.new_uuid()
    catalog.sessions.register(session, "test")
    run = BatchRun(first_offset=0, offset_count=5, record_count=5, min_timestamp=1, max_timestamp=9)
    commit = FileCommit(
        file_id=ids.new_uuid(),
        object_name="x",
        size=100,
        directory_length=10,
        session_id=session,
        sections=(SectionCommit(topic_id=topic.topic_id, partition=1, position=0, length=100, runs=(run,)),),
    )
    first = catalog.log.commit(commit)
    assert first == catalog.log.commit(commit)
    assert catalog.log.first_extent_at_or_after_timestamp(topic.topic_id, 1, 3) is not None
    catalog.topics.delete("flights")
    assert catalog.log.extents(topic.topic_id, 1, 3) == []
