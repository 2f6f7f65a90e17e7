ALTER TABLE {{schema}}.outbox_info DROP COLUMN role_prefix;
-- Made by `migrate --notify on`, with its trigger.
DROP FUNCTION IF EXISTS {{schema}}.wake() CASCADE;
