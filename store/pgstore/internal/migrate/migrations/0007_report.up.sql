-- compatible: 1
-- What an instance tells of itself with each heartbeat. An older program leaves
-- these columns as they are.
ALTER TABLE {{schema}}.relay
    ADD COLUMN version text NOT NULL DEFAULT '',      -- of the program
    ADD COLUMN clock   timestamptz,                   -- its own, when the heartbeat was sent
    ADD COLUMN trouble text[] NOT NULL DEFAULT '{}';  -- what does not work now, in words
