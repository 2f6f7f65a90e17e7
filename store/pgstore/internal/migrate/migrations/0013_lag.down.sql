DROP INDEX {{schema}}.parked_late;
