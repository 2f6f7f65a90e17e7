-- compatible: 1
-- Dead letters of a code and a topic: few of those with one of them may have the other.
CREATE INDEX parked_dead_cause ON {{schema}}.parked (pipe, code, topic, seq) WHERE state = 'dead';
