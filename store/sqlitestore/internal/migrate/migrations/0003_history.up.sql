-- The last eight attempts of a parked record, as JSON: when (microseconds since 1970),
-- class, code, text. They are written by the statement that parks the record anyway.
ALTER TABLE postrider_parked ADD COLUMN history TEXT NOT NULL DEFAULT '[]';

-- What is counted up to a limit, and what people look for: many dead letters may stand
-- before it.
CREATE INDEX postrider_parked_alive ON postrider_parked (pipe, lane, seq) WHERE state <> 'dead';
CREATE INDEX postrider_parked_dead ON postrider_parked (pipe, lane, seq) WHERE state = 'dead';
CREATE INDEX postrider_parked_key ON postrider_parked (pipe, key, seq);
CREATE INDEX postrider_parked_topic ON postrider_parked (pipe, topic, seq) WHERE state = 'dead';
CREATE INDEX postrider_parked_code ON postrider_parked (pipe, code, seq) WHERE state = 'dead';
CREATE INDEX postrider_parked_id ON postrider_parked (pipe, id);
