-- name: files_to_compact
-- The oldest ingestion files that have extents which no job has claimed, in commit order; without those that were in
-- a job that failed, and no more of them than have so many such extents together (one file at least).
SELECT file_id, object_name, size
FROM (
    SELECT file_id, object_name, size, sequence,
           sum(live_extents - claimed_extents) OVER (ORDER BY sequence) AS extents,
           row_number() OVER (ORDER BY sequence) AS number
    FROM (
        SELECT file_id, object_name, size, sequence, live_extents, claimed_extents
        FROM files AS f
        WHERE kind = 'ingestion' AND live_extents > claimed_extents
          AND NOT EXISTS (SELECT FROM suspects AS s WHERE s.file_id = f.file_id)
        ORDER BY sequence
        LIMIT %(limit)s
    ) AS oldest
) AS counted
WHERE number = 1 OR extents <= %(max_extents)s
ORDER BY sequence;

-- name: free_extents_of_files
-- The extents of some files that no job has claimed, by file and place in the file. Each file's are found by index:
-- OFFSET 0 and the scalar subquery keep PostgreSQL from beginning with all partitions, or with all extents.
SELECT e.topic_id, e.partition, e.base_offset, e.last_offset, e.record_count, e.min_timestamp, e.max_timestamp,
       e.file_id, f.object_name, f.kind, e.position, e.length, e.index_position, e.index_length, e.offset_shift,
       e.leader_epoch, e.unique_keys, e.committed_ms
FROM unnest(%(file_ids)s::uuid[]) AS wanted (file_id)
CROSS JOIN LATERAL (SELECT * FROM files WHERE files.file_id = wanted.file_id OFFSET 0) AS f
CROSS JOIN LATERAL (
    SELECT * FROM extents WHERE extents.file_id = f.file_id AND extents.job_id IS NULL OFFSET 0
) AS e
WHERE (SELECT true FROM partitions AS p WHERE p.topic_id = e.topic_id AND p.partition = e.partition)
ORDER BY f.sequence, e.position, e.base_offset;

-- name: extents_of_files
-- All live extents of some files, claimed or not, by file and place in the file.
SELECT e.topic_id, e.partition, e.base_offset, e.last_offset, e.record_count, e.min_timestamp, e.max_timestamp,
       e.file_id, f.object_name, f.kind, e.position, e.length, e.index_position, e.index_length, e.offset_shift,
       e.leader_epoch, e.unique_keys, e.committed_ms, e.job_id
FROM unnest(%(file_ids)s::uuid[]) AS wanted (file_id)
CROSS JOIN LATERAL (SELECT * FROM files WHERE files.file_id = wanted.file_id OFFSET 0) AS f
CROSS JOIN LATERAL (SELECT * FROM extents WHERE extents.file_id = f.file_id OFFSET 0) AS e
WHERE (SELECT true FROM partitions AS p WHERE p.topic_id = e.topic_id AND p.partition = e.partition)
ORDER BY f.sequence, e.position, e.base_offset;

-- name: partition_sizes
-- A page of partitions with what their extents add up to.
SELECT topic_id, partition, log_start_offset, last_stable_offset, high_watermark, log_end_offset,
       first_dirty_offset, leader_epoch, live_bytes, dirty_bytes, dirty_since_ms, ingestion_extents,
       compacted_extents, exactness
FROM partitions
WHERE (%(topic_ids)s::uuid[] IS NULL OR topic_id = ANY (%(topic_ids)s::uuid[]))
  AND (topic_id, partition) > (%(after_topic)s, %(after_partition)s)
ORDER BY topic_id, partition
LIMIT %(limit)s;

-- name: sizes_of
-- The partitions that are named and exist, with what their extents add up to.
SELECT topic_id, partition, log_start_offset, last_stable_offset, high_watermark, log_end_offset,
       first_dirty_offset, leader_epoch, live_bytes, dirty_bytes, dirty_since_ms, ingestion_extents,
       compacted_extents, exactness
FROM unnest(%(topic_ids)s::uuid[], %(partitions)s::integer[]) AS wanted (topic_id, partition)
JOIN partitions USING (topic_id, partition)
ORDER BY topic_id, partition;

-- name: dirty_partitions
-- A bounded number of the partitions that may be due for cleaning: dirty enough by their sums, or of a topic that
-- has a limit on how long records stay dirty, or with an exact job owed, which is for all there is. Topics take turns,
-- each with its largest dirty parts first, so that none is starved by another. One look at the narrow rows of
-- partitions; extents are not read.
SELECT topic_id, partition, log_start_offset, last_stable_offset, high_watermark, log_end_offset,
       first_dirty_offset, leader_epoch, live_bytes, dirty_bytes, dirty_since_ms, ingestion_extents,
       compacted_extents, exactness
FROM (
    SELECT p.*, row_number() OVER (PARTITION BY p.topic_id ORDER BY p.wanted_bytes DESC, p.partition) AS turn
    FROM (
        SELECT *, exactness = 'owed' AND %(owed)s AS is_owed,
               CASE WHEN exactness = 'owed' AND %(owed)s THEN live_bytes ELSE dirty_bytes END AS wanted_bytes
        FROM partitions
    ) AS p
    JOIN unnest(
        %(topic_ids)s::uuid[],
        %(ratios)s::double precision[],
        %(limited)s::boolean[]
    ) AS rule (topic_id, ratio, limited) USING (topic_id)
    WHERE p.wanted_bytes > 0
      AND (p.is_owed OR rule.limited OR p.dirty_bytes > rule.ratio * p.live_bytes)
) AS due
ORDER BY turn, wanted_bytes DESC, topic_id
LIMIT %(limit)s;

-- name: fragmented_partitions
-- Partitions with more extents in compacted files than they may rest with: a bounded number of them, neighbours in
-- section order, from some part of them on and round the end. One look at the narrow rows of partitions.
SELECT topic_id, partition, log_start_offset, last_stable_offset, high_watermark, log_end_offset,
       first_dirty_offset, leader_epoch, live_bytes, dirty_bytes, dirty_since_ms, ingestion_extents,
       compacted_extents, exactness
FROM (
    SELECT p.*, row_number() OVER (ORDER BY topic_id, partition) - 1 AS number, count(*) OVER () AS total
    FROM partitions AS p
    WHERE compacted_extents > live_bytes / %(section_bytes)s::bigint + %(resting_extents)s
) AS found
ORDER BY number < floor(%(start)s::double precision * total), number
LIMIT %(limit)s;

-- name: newest_compacted_extents
-- The newest extents of some partitions in compacted files, a bounded number each, by partition and offset.
SELECT e.topic_id, e.partition, e.base_offset, e.last_offset, e.record_count, e.min_timestamp, e.max_timestamp,
       e.file_id, e.object_name, e.kind, e.position, e.length, e.index_position, e.index_length, e.offset_shift,
       e.leader_epoch, e.unique_keys, e.committed_ms, e.job_id
FROM unnest(%(topic_ids)s::uuid[], %(partitions)s::integer[]) AS wanted (topic_id, partition)
CROSS JOIN LATERAL (
    SELECT each.*, f.object_name, f.kind
    FROM extents AS each
    CROSS JOIN LATERAL (SELECT * FROM files WHERE files.file_id = each.file_id OFFSET 0) AS f
    WHERE each.topic_id = wanted.topic_id AND each.partition = wanted.partition AND f.kind = 'compacted'
    ORDER BY each.base_offset DESC
    LIMIT %(limit)s
) AS e
WHERE (SELECT true FROM partitions AS p WHERE p.topic_id = wanted.topic_id AND p.partition = wanted.partition)
ORDER BY e.topic_id, e.partition, e.base_offset;

-- name: files_to_merge
-- Compacted files that no job has any part of, without those that were in a job that failed. Two sorts take turns:
-- small ones from a size on, the smaller first, and those of which much is dead by bytes and by share, the most dead
-- first. Where there is room, small ones below that size follow, the larger first. Small ones with very many extents
-- are not merged whole.
SELECT file_id, object_name, size, kind, committed_ms, live_extents, live_bytes, born_bytes - live_bytes
FROM (
    (
        SELECT f.*, 0 AS sort, row_number() OVER (ORDER BY live_bytes, file_id) AS turn
        FROM files AS f
        WHERE kind = 'compacted' AND dead_ms IS NULL AND claimed_extents = 0
          AND live_bytes >= %(from_bytes)s AND live_bytes < %(below_bytes)s AND live_extents <= %(extents_each)s
          AND NOT EXISTS (SELECT FROM suspects AS s WHERE s.file_id = f.file_id)
        ORDER BY live_bytes, file_id
        LIMIT %(limit)s
    )
    UNION ALL
    (
        SELECT f.*, 1, row_number() OVER (ORDER BY born_bytes - live_bytes DESC, file_id)
        FROM files AS f
        WHERE kind = 'compacted' AND dead_ms IS NULL AND claimed_extents = 0
          AND (live_bytes >= %(below_bytes)s OR live_extents > %(extents_each)s)
          AND born_bytes - live_bytes >= %(dead_bytes)s
          AND born_bytes - live_bytes >= %(dead_share)s::double precision * born_bytes
          AND NOT EXISTS (SELECT FROM suspects AS s WHERE s.file_id = f.file_id)
        ORDER BY born_bytes - live_bytes DESC, file_id
        LIMIT %(limit)s
    )
    UNION ALL
    (
        SELECT f.*, 2, %(limit)s::bigint + row_number() OVER (ORDER BY live_bytes DESC, file_id)
        FROM files AS f
        WHERE kind = 'compacted' AND dead_ms IS NULL AND claimed_extents = 0
          AND live_bytes < least(%(from_bytes)s, %(below_bytes)s) AND live_extents <= %(extents_each)s
          AND NOT EXISTS (SELECT FROM suspects AS s WHERE s.file_id = f.file_id)
        ORDER BY live_bytes DESC, file_id
        LIMIT %(limit)s
    )
) AS found
ORDER BY turn, sort
LIMIT %(limit)s;

-- name: files_of
-- Live files by their identifiers, in commit order.
SELECT file_id, object_name, size, kind, committed_ms, live_extents
FROM files
WHERE file_id = ANY (%(file_ids)s::uuid[]) AND dead_ms IS NULL
ORDER BY sequence;

-- name: extents_of
-- For each partition asked for, the extent that covers an offset and those after it, a bounded number each.
SELECT e.topic_id, e.partition, e.base_offset, e.last_offset, e.record_count, e.min_timestamp, e.max_timestamp,
       e.file_id, f.object_name, f.kind, e.position, e.length, e.index_position, e.index_length, e.offset_shift,
       e.leader_epoch, e.unique_keys, e.committed_ms, e.job_id
FROM unnest(
    %(topic_ids)s::uuid[],
    %(partitions)s::integer[],
    %(offsets)s::bigint[]
) AS wanted (topic_id, partition, from_offset)
CROSS JOIN LATERAL (
    SELECT * FROM extents AS each
    WHERE each.topic_id = wanted.topic_id AND each.partition = wanted.partition
      AND each.last_offset >= wanted.from_offset
      AND each.base_offset >= coalesce((
          SELECT base_offset FROM extents AS first
          WHERE first.topic_id = wanted.topic_id AND first.partition = wanted.partition
            AND first.base_offset <= wanted.from_offset
          ORDER BY first.base_offset DESC
          LIMIT 1
      ), 0)
    ORDER BY each.base_offset
    LIMIT %(limit)s
) AS e
JOIN files AS f USING (file_id)
WHERE (SELECT true FROM partitions AS p WHERE p.topic_id = wanted.topic_id AND p.partition = wanted.partition)
ORDER BY e.topic_id, e.partition, e.base_offset;

-- name: total_partitions
-- What all partitions add up to.
SELECT count(*), coalesce(sum(live_bytes), 0)::bigint, coalesce(sum(dirty_bytes), 0)::bigint,
       coalesce(sum(ingestion_extents), 0)::bigint, coalesce(sum(compacted_extents), 0)::bigint
FROM partitions;

-- name: total_files
-- How many files there are, and their bytes, by kind, live and dead.
SELECT kind, dead_ms IS NULL, count(*), coalesce(sum(size), 0)::bigint FROM files GROUP BY 1, 2;

-- name: backlog
-- What compaction has before it: ingestion files with extents that no job has claimed, and, apart from them, files that
-- spoil jobs.
SELECT w.files, w.bytes, w.oldest_ms, s.suspected, s.quarantined
FROM (
    SELECT count(*) AS files, coalesce(sum(size), 0)::bigint AS bytes, min(committed_ms) AS oldest_ms
    FROM files AS f
    WHERE kind = 'ingestion' AND live_extents > claimed_extents
      AND NOT EXISTS (SELECT FROM suspects AS s WHERE s.file_id = f.file_id)
) AS w, (
    SELECT count(*) AS suspected, count(quarantined_ms) AS quarantined FROM suspects
) AS s;
