DROP INDEX {{schema}}.parked_id, {{schema}}.parked_dead_code, {{schema}}.parked_dead_topic, {{schema}}.parked_dead_key, {{schema}}.parked_dead, {{schema}}.parked_alive;
ALTER TABLE {{schema}}.parked DROP COLUMN history;
