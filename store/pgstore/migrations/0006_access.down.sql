ALTER TABLE {{schema}}.outbox_info DROP COLUMN role_prefix;
