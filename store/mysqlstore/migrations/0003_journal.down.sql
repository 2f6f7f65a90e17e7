DROP TABLE IF EXISTS postrider_journal;
