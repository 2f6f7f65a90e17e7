DROP INDEX postrider_parked_id;
DROP INDEX postrider_parked_code;
DROP INDEX postrider_parked_topic;
DROP INDEX postrider_parked_key;
DROP INDEX postrider_parked_dead;
DROP INDEX postrider_parked_alive;
ALTER TABLE postrider_parked DROP COLUMN history;
