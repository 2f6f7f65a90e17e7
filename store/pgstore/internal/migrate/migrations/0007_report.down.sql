ALTER TABLE {{schema}}.relay DROP COLUMN version, DROP COLUMN clock, DROP COLUMN trouble;
