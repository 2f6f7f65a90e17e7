-- Dead letters of a code and a topic: few of those with one of them may have the other.
CREATE INDEX postrider_parked_cause ON postrider_parked (pipe, code, topic, seq) WHERE state = 'dead';
