-- compatible: 1
-- parked_late of version 13 serves the questions of this index. A step of its own: an old
-- transaction may hold up the lock that it takes, and the new index is not made again then.
DROP INDEX {{schema}}.parked_alive;
