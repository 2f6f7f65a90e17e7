DROP TABLE {{schema}}.sample;
