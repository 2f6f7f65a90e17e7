-- compatible: 1
-- The indexes come first: while they are built, relays still read. What is counted up to a limit, and what people look for: a million dead letters may
-- stand before it.
CREATE INDEX parked_alive ON {{schema}}.parked (pipe, lane, seq) WHERE state <> 'dead';
CREATE INDEX parked_dead ON {{schema}}.parked (pipe, lane, seq) WHERE state = 'dead';
CREATE INDEX parked_dead_key ON {{schema}}.parked (pipe, key, seq) WHERE state = 'dead';
CREATE INDEX parked_dead_topic ON {{schema}}.parked (pipe, topic, seq) WHERE state = 'dead';
CREATE INDEX parked_dead_code ON {{schema}}.parked (pipe, code, seq) WHERE state = 'dead';
CREATE INDEX parked_id ON {{schema}}.parked (pipe, id);

-- The last eight attempts of a parked record: when, class, code, text. They are written
-- by the statement that parks the record anyway. An older program leaves them as they
-- are.
ALTER TABLE {{schema}}.parked ADD COLUMN history jsonb NOT NULL DEFAULT '[]';
