-- kind: contraction, minimum 9
-- A producer without state in a partition may continue with any sequence number only if its state may have
-- expired. All
-- producers before this migration may have expired.
ALTER TABLE partitions ADD COLUMN producers_from bigint NOT NULL DEFAULT 0;
UPDATE partitions SET producers_from = (SELECT CASE WHEN is_called THEN last_value + 1 ELSE 0 END FROM producer_ids);

CREATE TABLE past_topics (
    name text COLLATE "C" PRIMARY KEY,
    producers_from bigint NOT NULL,
    deleted_ms bigint NOT NULL
);
CREATE INDEX past_topics_age ON past_topics (deleted_ms);
INSERT INTO past_topics (name, producers_from, deleted_ms)
SELECT name, (SELECT CASE WHEN is_called THEN last_value + 1 ELSE 0 END FROM producer_ids), max(deleted_ms)
FROM topics
WHERE deleted_ms IS NOT NULL
GROUP BY name;
