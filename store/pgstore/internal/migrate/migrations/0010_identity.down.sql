DO $$
DECLARE
    leaf record;
BEGIN
    FOR leaf IN SELECT '{{schema}}.outbox'::regclass AS name UNION ALL SELECT l.leaf::regclass FROM {{schema}}.partition_list() l LOOP
        EXECUTE format('ALTER TABLE %s REPLICA IDENTITY DEFAULT', leaf.name);
    END LOOP;
    IF (SELECT i.indisunique FROM pg_index i WHERE i.indexrelid = '{{schema}}.outbox_xid'::regclass) THEN
        DROP INDEX {{schema}}.outbox_xid;
        CREATE INDEX outbox_xid ON {{schema}}.outbox (xid);
    END IF;
END;
$$;

-- Makes partitions until so many wait behind the one in use, and returns how
-- many it made. To attach a table blocks neither writers nor readers, and waits
-- for no transaction of theirs.
CREATE OR REPLACE FUNCTION {{schema}}.partition_make(ahead integer) RETURNS integer LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET jit = off AS $$
DECLARE
    made integer := 0;
    next bigint;
    size bigint := {{schema}}.partition_size();
    leaf text;
    opts text;
BEGIN
    SELECT l.number + 1, array_to_string(c.reloptions, ', ') INTO next, opts
    FROM {{schema}}.partition_list() l JOIN pg_class c ON c.oid = l.leaf ORDER BY l.number DESC LIMIT 1;
    WHILE next <= {{schema}}.partition_now() + ahead LOOP
        leaf := 'outbox_p' || next;
        EXECUTE format('CREATE TABLE {{schema}}.%I (LIKE {{schema}}.outbox INCLUDING ALL) %s', leaf, 'WITH (' || opts || ')');
        EXECUTE format('ALTER TABLE {{schema}}.outbox ATTACH PARTITION {{schema}}.%I FOR VALUES FROM (%s) TO (%s)',
            leaf, next * size, (next + 1) * size);
        made := made + 1;
        next := next + 1;
    END LOOP;
    RETURN made;
END;
$$;
