-- A settlement writes the row of a lane to the binlog twice, so the row is short. settled_mark is a hash of the call of the last
-- settlement, by which a repeated call is known. settled_call is a random number of that call, 0 after a lease has moved the
-- lane since. holes is NULL where there are none.
SET @postrider_step = IF((SELECT COUNT(*) FROM information_schema.columns WHERE table_schema = DATABASE() AND table_name = 'postrider_progress' AND column_name = 'settled_mark') > 0, 'DO 0',
'ALTER TABLE postrider_progress
    DROP COLUMN settled_by, DROP COLUMN settled_epoch, DROP COLUMN settled_call,
    ADD COLUMN settled_mark BIGINT NOT NULL DEFAULT 0,
    ADD COLUMN settled_call INT NOT NULL DEFAULT 0,
    MODIFY COLUMN holes LONGTEXT CHARACTER SET ascii NULL');
PREPARE postrider_step FROM @postrider_step;
EXECUTE postrider_step;
DEALLOCATE PREPARE postrider_step;
