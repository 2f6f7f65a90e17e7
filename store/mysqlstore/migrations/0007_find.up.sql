-- The last eight attempts of a parked record, and what people count and look for: many records
-- may be before it. A key contains what its statements read, in their order.
-- Neither server has an ALTER TABLE that can be repeated: it is done once.
SET @postrider_step = IF((SELECT COUNT(*) FROM information_schema.columns WHERE table_schema = DATABASE() AND table_name = 'postrider_parked' AND column_name = 'history') > 0, 'DO 0',
'ALTER TABLE postrider_parked
    ADD COLUMN history LONGTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL DEFAULT (''[]''),
    ADD COLUMN expected BIGINT AS (CASE WHEN state = ''dead'' THEN 9223372036854775807 WHEN state = ''scheduled'' THEN due_at
        WHEN generation > 0 AND first_failed IS NOT NULL THEN first_failed ELSE GREATEST(created_at, COALESCE(not_before, 0)) END) STORED,
    ADD KEY of_state (pipe, state, seq, lane),
    ADD KEY of_lane (pipe, lane, state, seq),
    ADD KEY of_late (pipe, lane, expected),
    ADD KEY of_id (pipe, id),
    ADD KEY of_key (pipe, state, `key`, captures, seq),
    ADD KEY of_topic (pipe, state, topic, seq),
    ADD KEY of_code (pipe, state, code, seq)');
PREPARE postrider_step FROM @postrider_step;
EXECUTE postrider_step;
DEALLOCATE PREPARE postrider_step;
