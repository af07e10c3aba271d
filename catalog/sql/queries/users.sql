-- name: look_up_user
-- Return the credentials of a name, and what simulates those of a name that has none: one row at least. The
-- iterations are those of another user. The same query serves known and unknown names.
SELECT simulation.secret,
       (SELECT iterations FROM scram_credentials WHERE mechanism = 1 ORDER BY user_name LIMIT 1) AS iterations_256,
       (SELECT iterations FROM scram_credentials WHERE mechanism = 2 ORDER BY user_name LIMIT 1) AS iterations_512,
       own.mechanism, own.salt, own.iterations, own.stored_key, own.server_key
FROM user_simulation AS simulation
LEFT JOIN scram_credentials AS own ON own.user_name = %(user_name)s;

-- name: describe_users
-- Return the credentials of some or of all users, without their keys. Their number is limited.
SELECT user_name, mechanism, iterations FROM scram_credentials
WHERE %(user_names)s::text[] IS NULL OR user_name = ANY(%(user_names)s)
ORDER BY user_name, mechanism;

-- name: lock_users
-- Let one transaction at a time change users, so that their number stays limited.
SELECT FROM user_simulation FOR UPDATE;

-- name: set_credential
-- Set one credential of a user.
INSERT INTO scram_credentials (user_name, mechanism, salt, iterations, stored_key, server_key)
VALUES (%(user_name)s, %(mechanism)s, %(salt)s, %(iterations)s, %(stored_key)s, %(server_key)s)
ON CONFLICT (user_name, mechanism) DO UPDATE SET
    salt = EXCLUDED.salt, iterations = EXCLUDED.iterations,
    stored_key = EXCLUDED.stored_key, server_key = EXCLUDED.server_key;

-- name: delete_credential
-- Delete one credential of a user.
DELETE FROM scram_credentials WHERE user_name = %(user_name)s AND mechanism = %(mechanism)s;

-- name: delete_user
-- Delete all credentials of a user.
DELETE FROM scram_credentials WHERE user_name = %(user_name)s;

-- name: count_credentials
-- Count the credentials of all users.
SELECT count(*) AS credentials FROM scram_credentials;
