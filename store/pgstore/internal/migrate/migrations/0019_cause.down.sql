DROP INDEX {{schema}}.parked_dead_cause;
