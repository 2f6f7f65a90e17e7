-- compatible: 1
-- The roles' names begin with it; NULL: nobody asked for roles. Migrations to
-- come grant their tables to them.
ALTER TABLE {{schema}}.outbox_info ADD COLUMN role_prefix text;
