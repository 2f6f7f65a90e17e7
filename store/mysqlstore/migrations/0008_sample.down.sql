DROP TABLE IF EXISTS postrider_sample;
