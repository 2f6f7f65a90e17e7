-- What is set aside and not dead, by when it was to be sent: the first entry of a lane
-- is its lag, however many scheduled messages are before it by number. The status
-- counts in this order too, so that a record costs as many index entries as before.
CREATE INDEX postrider_parked_late ON postrider_parked (pipe, lane, (CASE WHEN state = 'scheduled' THEN due_at
    WHEN generation > 0 AND first_failed IS NOT NULL THEN first_failed ELSE max(created_at, coalesce(not_before, 0)) END)) WHERE state <> 'dead';
DROP INDEX postrider_parked_alive;
