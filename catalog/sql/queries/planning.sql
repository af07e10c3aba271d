-- name: files_to_compact
-- Return the oldest ingestion files after a sequence number that have unclaimed extents, in commit order, without
-- quarantine candidates and without files that have only extents of deleted topics. No extents are read while no topic
-- is deleted. The total of these extents is bounded, except that the first file may exceed the bound.
SELECT file_id, object_name, size, sequence, live_extents
FROM (
    SELECT file_id, object_name, size, sequence, live_extents,
           sum(live_extents - claimed_extents) OVER (ORDER BY sequence) AS extents,
           row_number() OVER (ORDER BY sequence) AS number
    FROM (
        SELECT file_id, object_name, size, sequence, live_extents, claimed_extents
        FROM files AS f
        WHERE kind = 'ingestion' AND live_extents > claimed_extents AND sequence > %(after)s
          AND NOT EXISTS (SELECT FROM quarantine_candidates AS c WHERE c.file_id = f.file_id)
          AND (NOT EXISTS (SELECT FROM topics WHERE deleted_ms IS NOT NULL) OR (
              SELECT true FROM extents AS e
              WHERE e.file_id = f.file_id AND e.job_id IS NULL
                AND (SELECT true FROM partitions AS p WHERE p.topic_id = e.topic_id AND p.partition = e.partition)
              LIMIT 1
          ))
        ORDER BY sequence
        LIMIT %(limit)s
    ) AS oldest
) AS counted
WHERE number = 1 OR extents <= %(max_extents)s
ORDER BY sequence;

-- name: unclaimed_extents_of_files
-- Return the unclaimed extents of some files, by file and position. OFFSET 0 and the scalar subquery make
-- PostgreSQL find each file's extents by index, and keep it from starting with all partitions or all extents.
SELECT e.topic_id, e.partition, e.base_offset, e.last_offset, e.record_count, e.min_timestamp, e.max_timestamp,
       e.file_id, f.object_name, f.kind, f.format_version, f.required_features, f.kernel_digest, e.position, e.length,
       e.index_position, e.index_length, e.offset_shift, e.leader_epoch, e.unique_keys, e.committed_ms
FROM unnest(%(file_ids)s::uuid[]) AS requested (file_id)
CROSS JOIN LATERAL (SELECT * FROM files WHERE files.file_id = requested.file_id OFFSET 0) AS f
CROSS JOIN LATERAL (
    SELECT * FROM extents WHERE extents.file_id = f.file_id AND extents.job_id IS NULL OFFSET 0
) AS e
WHERE f.job_id IS NULL AND (SELECT true FROM partitions AS p WHERE p.topic_id = e.topic_id AND p.partition = e.partition)
ORDER BY f.sequence, e.position, e.base_offset;

-- name: extents_of_files
-- Return all live extents of some files, claimed or not, by file and position.
SELECT e.topic_id, e.partition, e.base_offset, e.last_offset, e.record_count, e.min_timestamp, e.max_timestamp,
       e.file_id, f.object_name, f.kind, f.format_version, f.required_features, f.kernel_digest, e.position, e.length,
       e.index_position, e.index_length, e.offset_shift, e.leader_epoch, e.unique_keys, e.committed_ms,
       coalesce(f.job_id, e.job_id) AS claimed_by
FROM unnest(%(file_ids)s::uuid[]) AS requested (file_id)
CROSS JOIN LATERAL (SELECT * FROM files WHERE files.file_id = requested.file_id OFFSET 0) AS f
CROSS JOIN LATERAL (SELECT * FROM extents WHERE extents.file_id = f.file_id OFFSET 0) AS e
WHERE (SELECT true FROM partitions AS p WHERE p.topic_id = e.topic_id AND p.partition = e.partition)
ORDER BY f.sequence, e.position, e.base_offset;

-- name: partition_sizes
-- Return a page of partitions with the totals of their extents.
SELECT topic_id, partition, log_start_offset, last_stable_offset, high_watermark, log_end_offset,
       first_dirty_offset, leader_epoch, has_transactions, live_bytes, dirty_bytes, dirty_since_ms, ingestion_extents,
       compacted_extents, exactness
FROM partitions
WHERE (%(topic_ids)s::uuid[] IS NULL OR topic_id = ANY (%(topic_ids)s::uuid[]))
  AND (topic_id, partition) > (%(after_topic)s, %(after_partition)s)
ORDER BY topic_id, partition
LIMIT %(limit)s;

-- name: sizes_of
-- Return the given partitions with the totals of their extents; unknown ones are left out.
SELECT topic_id, partition, log_start_offset, last_stable_offset, high_watermark, log_end_offset,
       first_dirty_offset, leader_epoch, has_transactions, live_bytes, dirty_bytes, dirty_since_ms, ingestion_extents,
       compacted_extents, exactness
FROM unnest(%(topic_ids)s::uuid[], %(partitions)s::integer[]) AS requested (topic_id, partition)
JOIN partitions USING (topic_id, partition)
ORDER BY topic_id, partition;

-- name: dirty_partitions
-- Return a bounded number of partitions that may need cleaning: with a high dirty ratio, or of a topic that
-- limits how long records stay dirty, or with incomplete deduplication, where all bytes count. Topics
-- alternate, each with its largest dirty parts first, so that no topic starves. The query scans the narrow
-- rows of partitions and reads no extents.
SELECT topic_id, partition, log_start_offset, last_stable_offset, high_watermark, log_end_offset,
       first_dirty_offset, leader_epoch, has_transactions, live_bytes, dirty_bytes, dirty_since_ms, ingestion_extents,
       compacted_extents, exactness
FROM (
    SELECT p.*, row_number() OVER (PARTITION BY p.topic_id ORDER BY p.cleanable_bytes DESC, p.partition) AS round
    FROM (
        SELECT *, exactness = 'dedup_incomplete' AND %(include_incomplete)s AS is_incomplete,
               CASE WHEN exactness = 'dedup_incomplete' AND %(include_incomplete)s THEN live_bytes
                    ELSE dirty_bytes END AS cleanable_bytes
        FROM partitions
    ) AS p
    JOIN unnest(
        %(topic_ids)s::uuid[],
        %(ratios)s::double precision[],
        %(limited)s::boolean[]
    ) AS rule (topic_id, ratio, limited) USING (topic_id)
    WHERE p.cleanable_bytes > 0
      AND (p.is_incomplete OR rule.limited OR p.dirty_bytes > rule.ratio * p.live_bytes)
) AS due
ORDER BY round, cleanable_bytes DESC, topic_id
LIMIT %(limit)s;

-- name: fragmented_partitions
-- Return partitions with too many extents in compacted files: a bounded number, contiguous in section order,
-- that begins at a given fraction of them and wraps around. The query scans the narrow rows of partitions.
SELECT topic_id, partition, log_start_offset, last_stable_offset, high_watermark, log_end_offset,
       first_dirty_offset, leader_epoch, has_transactions, live_bytes, dirty_bytes, dirty_since_ms, ingestion_extents,
       compacted_extents, exactness
FROM (
    SELECT p.*, row_number() OVER (ORDER BY topic_id, partition) - 1 AS number, count(*) OVER () AS total
    FROM partitions AS p
    WHERE compacted_extents > live_bytes / %(section_bytes)s::bigint + %(resting_extents)s
) AS found
ORDER BY number < floor(%(start)s::double precision * total), number
LIMIT %(limit)s;

-- name: newest_compacted_extents
-- Return the newest extents of some partitions in compacted files, a bounded number each, by partition and
-- offset.
SELECT e.topic_id, e.partition, e.base_offset, e.last_offset, e.record_count, e.min_timestamp, e.max_timestamp,
       e.file_id, e.object_name, e.kind, e.format_version, e.required_features, e.kernel_digest, e.position, e.length,
       e.index_position, e.index_length, e.offset_shift, e.leader_epoch, e.unique_keys, e.committed_ms,
       coalesce(e.file_job_id, e.job_id) AS claimed_by
FROM unnest(%(topic_ids)s::uuid[], %(partitions)s::integer[]) AS requested (topic_id, partition)
CROSS JOIN LATERAL (
    SELECT each.*, f.object_name, f.kind, f.format_version, f.required_features, f.kernel_digest,
           f.job_id AS file_job_id
    FROM extents AS each
    CROSS JOIN LATERAL (SELECT * FROM files WHERE files.file_id = each.file_id OFFSET 0) AS f
    WHERE each.topic_id = requested.topic_id AND each.partition = requested.partition AND f.kind = 'compacted'
    ORDER BY each.base_offset DESC
    LIMIT %(limit)s
) AS e
WHERE (SELECT true FROM partitions AS p WHERE p.topic_id = requested.topic_id AND p.partition = requested.partition)
ORDER BY e.topic_id, e.partition, e.base_offset;

-- name: files_to_merge
-- Return compacted files without claimed extents, except quarantine candidates and files that have only extents
-- of deleted topics. Two groups alternate: small
-- files from a size on, smallest first, and files with many dead bytes by amount and by share, most dead
-- bytes first. Small files below that size follow, largest first. Small files with very many extents are left
-- out, because they are not merged whole.
SELECT file_id, object_name, size, kind, committed_ms, live_extents, live_bytes,
       initial_bytes - live_bytes AS dead_bytes
FROM (
    (
        SELECT f.*, 0 AS file_group, row_number() OVER (ORDER BY live_bytes, file_id) AS round
        FROM files AS f
        WHERE kind = 'compacted' AND dead_ms IS NULL AND claimed_extents = 0
          AND live_bytes >= %(from_bytes)s AND live_bytes < %(below_bytes)s AND live_extents <= %(extents_each)s
          AND NOT EXISTS (SELECT FROM quarantine_candidates AS c WHERE c.file_id = f.file_id)
          AND (NOT EXISTS (SELECT FROM topics WHERE deleted_ms IS NOT NULL) OR (
              SELECT true FROM extents AS e
              WHERE e.file_id = f.file_id
                AND (SELECT true FROM partitions AS p WHERE p.topic_id = e.topic_id AND p.partition = e.partition)
              LIMIT 1
          ))
        ORDER BY live_bytes, file_id
        LIMIT %(limit)s
    )
    UNION ALL
    (
        SELECT f.*, 1, row_number() OVER (ORDER BY initial_bytes - live_bytes DESC, file_id)
        FROM files AS f
        WHERE kind = 'compacted' AND dead_ms IS NULL AND claimed_extents = 0
          AND (live_bytes >= %(below_bytes)s OR live_extents > %(extents_each)s)
          AND initial_bytes - live_bytes >= %(dead_bytes)s
          AND initial_bytes - live_bytes >= %(dead_share)s::double precision * initial_bytes
          AND NOT EXISTS (SELECT FROM quarantine_candidates AS c WHERE c.file_id = f.file_id)
          AND (NOT EXISTS (SELECT FROM topics WHERE deleted_ms IS NOT NULL) OR (
              SELECT true FROM extents AS e
              WHERE e.file_id = f.file_id
                AND (SELECT true FROM partitions AS p WHERE p.topic_id = e.topic_id AND p.partition = e.partition)
              LIMIT 1
          ))
        ORDER BY initial_bytes - live_bytes DESC, file_id
        LIMIT %(limit)s
    )
    UNION ALL
    (
        SELECT f.*, 2, %(limit)s::bigint + row_number() OVER (ORDER BY live_bytes DESC, file_id)
        FROM files AS f
        WHERE kind = 'compacted' AND dead_ms IS NULL AND claimed_extents = 0
          AND live_bytes < least(%(from_bytes)s, %(below_bytes)s) AND live_extents <= %(extents_each)s
          AND NOT EXISTS (SELECT FROM quarantine_candidates AS c WHERE c.file_id = f.file_id)
          AND (NOT EXISTS (SELECT FROM topics WHERE deleted_ms IS NOT NULL) OR (
              SELECT true FROM extents AS e
              WHERE e.file_id = f.file_id
                AND (SELECT true FROM partitions AS p WHERE p.topic_id = e.topic_id AND p.partition = e.partition)
              LIMIT 1
          ))
        ORDER BY live_bytes DESC, file_id
        LIMIT %(limit)s
    )
) AS found
ORDER BY round, file_group
LIMIT %(limit)s;

-- name: files_of
-- Return live files by their ids, in commit order.
SELECT file_id, object_name, size, kind, committed_ms, live_extents
FROM files
WHERE file_id = ANY (%(file_ids)s::uuid[]) AND dead_ms IS NULL
ORDER BY sequence;

-- name: extents_of
-- Return, for each given partition, the extent that covers an offset and those after it, a bounded number
-- each, with or without the extents of control batches.
SELECT e.topic_id, e.partition, e.base_offset, e.last_offset, e.record_count, e.min_timestamp, e.max_timestamp,
       e.file_id, f.object_name, f.kind, f.format_version, f.required_features, f.kernel_digest, e.position, e.length,
       e.index_position, e.index_length, e.offset_shift, e.leader_epoch, e.unique_keys, e.committed_ms,
       coalesce(f.job_id, e.job_id) AS claimed_by, e.control_producer_id, e.control_producer_epoch, e.control_commits
FROM unnest(
    %(topic_ids)s::uuid[],
    %(partitions)s::integer[],
    %(offsets)s::bigint[]
) AS requested (topic_id, partition, from_offset)
CROSS JOIN LATERAL (
    SELECT * FROM extents AS each
    WHERE each.topic_id = requested.topic_id AND each.partition = requested.partition
      AND each.last_offset >= requested.from_offset
      AND (each.control_producer_id IS NULL OR %(with_controls)s)
      AND each.base_offset >= coalesce((
          SELECT base_offset FROM extents AS first
          WHERE first.topic_id = requested.topic_id AND first.partition = requested.partition
            AND first.base_offset <= requested.from_offset
          ORDER BY first.base_offset DESC
          LIMIT 1
      ), 0)
    ORDER BY each.base_offset
    LIMIT %(limit)s
) AS e
LEFT JOIN files AS f USING (file_id)
WHERE (f.file_id IS NOT NULL OR e.control_producer_id IS NOT NULL)
  AND (SELECT true FROM partitions AS p WHERE p.topic_id = requested.topic_id AND p.partition = requested.partition)
ORDER BY e.topic_id, e.partition, e.base_offset;

-- name: control_batches_after
-- Return, for each given extent by its number, the offset after the control batches that follow it directly, up to a
-- bounded number of them. The extents of a log have no gaps, so these end where the next extent of records begins.
SELECT requested.number, least(coalesce((
           SELECT e.base_offset FROM extents AS e
           WHERE e.topic_id = requested.topic_id AND e.partition = requested.partition
             AND e.base_offset > requested.last_offset AND e.base_offset <= requested.last_offset + 1 + %(limit)s
             AND e.control_producer_id IS NULL
           ORDER BY e.base_offset
           LIMIT 1
       ), p.high_watermark), requested.last_offset + 1 + %(limit)s) AS end_offset
FROM unnest(%(topic_ids)s::uuid[], %(partitions)s::integer[], %(last_offsets)s::bigint[])
    WITH ORDINALITY AS requested (topic_id, partition, last_offset, number)
JOIN partitions AS p USING (topic_id, partition);

-- name: aborted_with_records
-- Return the aborted transactions that overlap a range of offsets of each given partition, a bounded number each, by
-- first offset, and the first ingestion file's extent that may have records of them (null if there is none). Once the
-- last stable offset has passed the range, all that ended later began after it, so the search ends there.
SELECT requested.topic_id, requested.partition, found.producer_id, found.first_offset, found.last_offset, (
           SELECT e.base_offset FROM extents AS e JOIN files AS f USING (file_id)
           WHERE e.topic_id = requested.topic_id AND e.partition = requested.partition AND f.kind = 'ingestion'
             AND e.last_offset >= found.first_offset AND e.base_offset < found.last_offset
             AND e.base_offset >= coalesce((
                 SELECT max(x.base_offset) FROM extents AS x
                 WHERE x.topic_id = requested.topic_id AND x.partition = requested.partition
                   AND x.base_offset <= found.first_offset
             ), 0)
           ORDER BY e.base_offset
           LIMIT 1
       ) AS extent_offset
FROM unnest(%(topic_ids)s::uuid[], %(partitions)s::integer[], %(base_offsets)s::bigint[], %(end_offsets)s::bigint[])
    AS requested (topic_id, partition, base_offset, end_offset)
CROSS JOIN LATERAL (
    SELECT a.producer_id, a.first_offset, a.last_offset FROM aborted_transactions AS a
    WHERE a.topic_id = requested.topic_id AND a.partition = requested.partition
      AND a.last_offset >= requested.base_offset AND a.first_offset < requested.end_offset
      AND a.last_offset <= coalesce((
          SELECT b.last_offset FROM aborted_transactions AS b
          WHERE b.topic_id = requested.topic_id AND b.partition = requested.partition
            AND b.last_offset >= requested.base_offset AND b.last_stable_offset >= requested.end_offset
          ORDER BY b.last_offset
          LIMIT 1
      ), 9223372036854775807)
    ORDER BY a.first_offset
    LIMIT %(limit)s
) AS found
ORDER BY requested.topic_id, requested.partition, found.first_offset;

-- name: total_partitions
-- Return the totals of all partitions.
SELECT count(*) AS partitions,
       coalesce(sum(live_bytes), 0)::bigint AS live_bytes,
       coalesce(sum(dirty_bytes), 0)::bigint AS dirty_bytes,
       coalesce(sum(ingestion_extents), 0)::bigint AS ingestion_extents,
       coalesce(sum(compacted_extents), 0)::bigint AS compacted_extents
FROM partitions;

-- name: total_files
-- Return the number and the bytes of files, by kind, live and dead.
SELECT kind, dead_ms IS NULL AS is_live, count(*) AS files, coalesce(sum(size), 0)::bigint AS size
FROM files
GROUP BY 1, 2;

-- name: backlog
-- Return the backlog of compaction: ingestion files with unclaimed extents of existing topics, and quarantine candidates, which
-- do not count among them.
SELECT ingestion.ingestion_files, ingestion.ingestion_bytes, ingestion.ingestion_extents, ingestion.oldest_ms,
       candidates.quarantine_candidate_files, candidates.quarantined_files
FROM (
    SELECT count(*) AS ingestion_files, coalesce(sum(size), 0)::bigint AS ingestion_bytes,
           coalesce(sum(live_extents - claimed_extents), 0)::bigint AS ingestion_extents,
           min(committed_ms) AS oldest_ms
    FROM files AS f
    WHERE kind = 'ingestion' AND live_extents > claimed_extents
      AND NOT EXISTS (SELECT FROM quarantine_candidates AS c WHERE c.file_id = f.file_id)
      AND (NOT EXISTS (SELECT FROM topics WHERE deleted_ms IS NOT NULL) OR (
          SELECT true FROM extents AS e
          WHERE e.file_id = f.file_id AND e.job_id IS NULL
            AND (SELECT true FROM partitions AS p WHERE p.topic_id = e.topic_id AND p.partition = e.partition)
          LIMIT 1
      ))
) AS ingestion, (
    SELECT count(*) AS quarantine_candidate_files, count(quarantined_ms) AS quarantined_files
    FROM quarantine_candidates
) AS candidates;
