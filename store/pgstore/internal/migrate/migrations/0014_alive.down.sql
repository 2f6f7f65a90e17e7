CREATE INDEX parked_alive ON {{schema}}.parked (pipe, lane, seq) WHERE state <> 'dead';
