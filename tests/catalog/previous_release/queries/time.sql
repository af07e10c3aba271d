-- name: server_now
-- Return the server's clock in milliseconds since the Unix epoch; it advances during a transaction.
SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint AS now_ms;
