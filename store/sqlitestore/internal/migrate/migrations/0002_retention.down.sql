DROP TABLE postrider_retention;
