-- name: facts_of
-- Return what the catalog says about batches of producers in files, one row for each batch whose partition exists.
-- `number` is its ordinal (from 1) in the parameters. `aborted_end` is the last offset of the aborted transaction that
-- covers it. `ends_in_commit` is the outcome of the producer's first control batch after it; it is null without one,
-- and where it does not matter because a job has removed control batches of the partition.
SELECT given.number, p.log_start_offset, p.last_stable_offset, p.transactions_removed_ms IS NULL AS has_all_controls,
       open.first_offset AS open_offset, aborted.last_offset AS aborted_end, control.commits AS ends_in_commit,
       state.producer_epoch, state.batches
FROM unnest(
    %(topic_ids)s::uuid[], %(partitions)s::integer[], %(offsets)s::bigint[], %(producer_ids)s::bigint[],
    %(transactional)s::bigint[]
) WITH ORDINALITY AS given (topic_id, partition, base_offset, producer_id, is_transactional, number)
JOIN partitions AS p USING (topic_id, partition)
LEFT JOIN producers AS state USING (topic_id, partition, producer_id)
LEFT JOIN transaction_partitions AS open USING (topic_id, partition, producer_id)
LEFT JOIN LATERAL (
    SELECT a.last_offset FROM aborted_transactions AS a
    WHERE given.is_transactional = 1 AND a.topic_id = given.topic_id AND a.partition = given.partition
      AND a.producer_id = given.producer_id AND a.first_offset <= given.base_offset
      AND a.last_offset > given.base_offset AND a.last_offset <= coalesce((
          SELECT b.last_offset FROM aborted_transactions AS b
          WHERE b.topic_id = given.topic_id AND b.partition = given.partition
            AND b.last_offset > given.base_offset AND b.last_stable_offset > given.base_offset
          ORDER BY b.last_offset
          LIMIT 1
      ), 9223372036854775807)
    ORDER BY a.last_offset
    LIMIT 1
) AS aborted ON true
LEFT JOIN LATERAL (
    SELECT e.control_commits AS commits FROM extents AS e
    WHERE given.is_transactional = 1
      AND (p.transactions_removed_ms IS NULL OR given.base_offset >= p.last_stable_offset)
      AND e.topic_id = given.topic_id AND e.partition = given.partition AND e.base_offset > given.base_offset
      AND e.control_producer_id = given.producer_id
    ORDER BY e.base_offset
    LIMIT 1
) AS control ON true;
