SET @postrider_step = IF((SELECT COUNT(*) FROM information_schema.columns WHERE table_schema = DATABASE() AND table_name = 'postrider_parked' AND column_name = 'history') = 0, 'DO 0',
'ALTER TABLE postrider_parked DROP KEY of_state, DROP KEY of_lane, DROP KEY of_late, DROP KEY of_id, DROP KEY of_key, DROP KEY of_topic, DROP KEY of_code,
    DROP COLUMN expected, DROP COLUMN history');
PREPARE postrider_step FROM @postrider_step;
EXECUTE postrider_step;
DEALLOCATE PREPARE postrider_step;
