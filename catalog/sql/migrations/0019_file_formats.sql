-- kind: expansion
-- What a reader of a file must know before it reads any byte, and the kernels that wrote it.
ALTER TABLE files ADD COLUMN format_version smallint NOT NULL DEFAULT 1;
ALTER TABLE files ADD COLUMN required_features text NOT NULL DEFAULT '';
ALTER TABLE files ADD COLUMN kernel_digest text NOT NULL DEFAULT '';
