-- kind: expansion
-- The addresses of a broker by listener: [[name, host, port], ...]. Empty for an agent of a previous release, whose
-- only listener has the address in host and port.
ALTER TABLE sessions ADD COLUMN endpoints jsonb NOT NULL DEFAULT '[]';
