UPDATE postrider_progress SET holes = '[]' WHERE holes IS NULL;
SET @postrider_step = IF((SELECT COUNT(*) FROM information_schema.columns WHERE table_schema = DATABASE() AND table_name = 'postrider_progress' AND column_name = 'settled_mark') = 0, 'DO 0',
'ALTER TABLE postrider_progress
    DROP COLUMN settled_mark, DROP COLUMN settled_call,
    ADD COLUMN settled_by VARCHAR(100) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL DEFAULT '''',
    ADD COLUMN settled_epoch BIGINT NOT NULL DEFAULT -1,
    ADD COLUMN settled_call BIGINT NOT NULL DEFAULT 0,
    MODIFY COLUMN holes LONGTEXT CHARACTER SET ascii NOT NULL DEFAULT (''[]'')');
PREPARE postrider_step FROM @postrider_step;
EXECUTE postrider_step;
DEALLOCATE PREPARE postrider_step;
