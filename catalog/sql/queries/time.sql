-- name: server_now
-- What the server's clock says, in milliseconds since the Unix epoch; goes on within a transaction.
SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint;
