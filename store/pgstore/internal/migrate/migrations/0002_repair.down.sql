DROP TRIGGER request_unknown ON {{schema}}.request;
DROP FUNCTION {{schema}}.request_is_unknown();
DELETE FROM {{schema}}.request WHERE kind NOT IN ('retry', 'discard');
ALTER TABLE {{schema}}.request
    DROP COLUMN ask, DROP COLUMN args, DROP COLUMN key, DROP COLUMN upto, DROP COLUMN gate,
    DROP COLUMN moved, DROP COLUMN rate, DROP COLUMN ran_at;
DROP TABLE {{schema}}.repair;
DROP TABLE {{schema}}.hold;
DROP TABLE {{schema}}.audit;
DROP FUNCTION {{schema}}.audit_is_append_only();
