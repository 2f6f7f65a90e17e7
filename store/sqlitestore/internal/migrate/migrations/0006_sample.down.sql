DROP TABLE postrider_sample;
