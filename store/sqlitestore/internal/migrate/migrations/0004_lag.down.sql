CREATE INDEX postrider_parked_alive ON postrider_parked (pipe, lane, seq) WHERE state <> 'dead';
DROP INDEX postrider_parked_late;
