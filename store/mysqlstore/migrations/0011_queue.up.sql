-- What is due is read in the order of an index. queue is the key of a record that stands in its key's
-- queue, and empty for other records. place is the number of a record in a queue, and for another one the
-- time when it becomes due, NULL if it is dead.
SET @postrider_step = IF((SELECT COUNT(*) FROM information_schema.columns WHERE table_schema = DATABASE() AND table_name = 'postrider_parked' AND column_name = 'queue') > 0, 'DO 0',
'ALTER TABLE postrider_parked
    ADD COLUMN queue VARBINARY(512) AS (CASE WHEN captures OR state = ''waiting'' THEN `key` ELSE '''' END) STORED,
    ADD COLUMN place BIGINT AS (CASE WHEN `key` <> '''' AND (captures OR state = ''waiting'') THEN seq WHEN state <> ''dead'' THEN due_at END) STORED,
    ADD KEY of_queue (pipe, lane, queue, place, seq)');
PREPARE postrider_step FROM @postrider_step;
EXECUTE postrider_step;
DEALLOCATE PREPARE postrider_step;
