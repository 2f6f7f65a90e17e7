-- A partitioned outbox stays one: without these nobody makes or drops partitions.
DROP FUNCTION {{schema}}.partition_drop(interval, boolean, integer);
DROP FUNCTION {{schema}}.partition_due(interval, bigint);
DROP FUNCTION {{schema}}.partition_book(bigint);
DROP FUNCTION {{schema}}.partition_holder(bigint);
DROP FUNCTION {{schema}}.partition_roll(interval, bigint);
DROP FUNCTION {{schema}}.partition_make(integer);
DROP FUNCTION {{schema}}.partition_note();
DROP FUNCTION {{schema}}.partition_now();
DROP FUNCTION {{schema}}.partition_list();
DROP FUNCTION {{schema}}.partition_size();
DROP TABLE {{schema}}.partition;
