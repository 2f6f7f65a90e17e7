SET @postrider_step = IF((SELECT COUNT(*) FROM information_schema.statistics WHERE table_schema = DATABASE() AND table_name = 'postrider_parked' AND index_name = 'of_cause') > 0, 'ALTER TABLE postrider_parked DROP KEY of_cause', 'DO 0');
PREPARE postrider_step FROM @postrider_step;
EXECUTE postrider_step;
DEALLOCATE PREPARE postrider_step;
