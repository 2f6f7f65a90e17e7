DROP TRIGGER IF EXISTS zz_strict_number ON {{schema}}.outbox;
ALTER TABLE {{schema}}.outbox DROP COLUMN emptied_at;
DROP FUNCTION {{schema}}.strict_apply();
DROP FUNCTION {{schema}}.lock_keys(text[], text[]);
DROP FUNCTION {{schema}}.strict_number();
DROP TABLE {{schema}}.key_version;
DROP TABLE {{schema}}.strict_topic;
