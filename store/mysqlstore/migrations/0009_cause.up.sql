-- Dead letters of a code and a topic: few of those with one of them may have the other.
SET @postrider_step = IF((SELECT COUNT(*) FROM information_schema.statistics WHERE table_schema = DATABASE() AND table_name = 'postrider_parked' AND index_name = 'of_cause') > 0, 'DO 0', 'ALTER TABLE postrider_parked ADD KEY of_cause (pipe, state, code, topic, seq)');
PREPARE postrider_step FROM @postrider_step;
EXECUTE postrider_step;
DEALLOCATE PREPARE postrider_step;
