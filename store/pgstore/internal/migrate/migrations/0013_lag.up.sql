-- compatible: 1
-- What is set aside and not dead, by when it was to be sent: the first entry of a lane
-- is its lag, however many scheduled messages are before it by number. The status
-- counts in this order too, so that a record costs as many index entries as before.
CREATE INDEX parked_late ON {{schema}}.parked (pipe, lane, (CASE WHEN state = 'scheduled' THEN due_at
 WHEN generation > 0 THEN coalesce(first_failed, parked_at) ELSE greatest(created_at, not_before) END)) WHERE state <> 'dead';
