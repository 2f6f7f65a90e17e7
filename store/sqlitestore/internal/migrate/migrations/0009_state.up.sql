-- Parked records of one state by number: a list, the doctor and the status find a few records of
-- one state among many of another. The state is an expression here, so that no other statement
-- takes this index for one of its own; the lane has a count read the index alone.
CREATE INDEX postrider_parked_state ON postrider_parked (pipe, (state || ''), seq, lane);
