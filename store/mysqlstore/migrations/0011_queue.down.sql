SET @postrider_step = IF((SELECT COUNT(*) FROM information_schema.columns WHERE table_schema = DATABASE() AND table_name = 'postrider_parked' AND column_name = 'queue') = 0, 'DO 0',
'ALTER TABLE postrider_parked DROP KEY of_queue, DROP COLUMN place, DROP COLUMN queue');
PREPARE postrider_step FROM @postrider_step;
EXECUTE postrider_step;
DEALLOCATE PREPARE postrider_step;
