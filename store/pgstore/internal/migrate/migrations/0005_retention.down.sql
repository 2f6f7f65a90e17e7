DROP VIEW {{schema}}.keeper;
DROP TRIGGER book_discard ON {{schema}}.request;
DROP FUNCTION {{schema}}.book_discard();
DROP TABLE {{schema}}.book;
DROP TABLE {{schema}}.book_lane;
DROP TABLE {{schema}}.book_cursor;
DROP TABLE {{schema}}.retention;
