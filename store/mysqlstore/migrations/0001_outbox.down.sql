DROP VIEW IF EXISTS postrider_messages;
DROP TABLE IF EXISTS postrider_request;
DROP TABLE IF EXISTS postrider_parked;
DROP TABLE IF EXISTS postrider_relay;
DROP TABLE IF EXISTS postrider_progress;
DROP TABLE IF EXISTS postrider_outbox;
DROP TABLE IF EXISTS postrider_info;
