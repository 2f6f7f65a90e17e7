DROP VIEW postrider_messages;
DROP TABLE postrider_request;
DROP TABLE postrider_parked;
DROP TABLE postrider_relay;
DROP TABLE postrider_progress;
DROP TRIGGER postrider_outbox_headers;
DROP TABLE postrider_outbox;
DROP TABLE postrider_info;
