-- compatible: 1
-- A publication with updates or deletes names rows by the replica identity. Lane
-- is generated, and publications leave generated columns out: with the primary key
-- as the identity PostgreSQL 18 refuses every DELETE and UPDATE of the outbox. The
-- pair of transaction id and number names a row too. Building its index holds up
-- writers, so a large outbox keeps the old one: the doctor tells when that matters.
DO $$
DECLARE
    leaf record;
BEGIN
    IF (SELECT sum(pg_relation_size(t.oid)) FROM (SELECT '{{schema}}.outbox'::regclass UNION ALL SELECT l.leaf FROM {{schema}}.partition_list() l) t(oid)) > 67108864 THEN
        RETURN;
    END IF;
    LOCK TABLE {{schema}}.outbox IN ACCESS EXCLUSIVE MODE;
    DROP INDEX IF EXISTS {{schema}}.outbox_xid;
    CREATE UNIQUE INDEX outbox_xid ON {{schema}}.outbox (xid, seq);
    ALTER TABLE {{schema}}.outbox REPLICA IDENTITY USING INDEX outbox_xid;
    FOR leaf IN SELECT h.inhrelid AS index, i.indrelid::regclass AS name, c.relname FROM pg_inherits h
        JOIN pg_index i ON i.indexrelid = h.inhrelid JOIN pg_class c ON c.oid = h.inhrelid WHERE h.inhparent = '{{schema}}.outbox_xid'::regclass
    LOOP
        EXECUTE format('ALTER TABLE %s REPLICA IDENTITY USING INDEX %I', leaf.name, leaf.relname);
    END LOOP;
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
    p    record;
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
    -- Those that are made, and the empty one below. The one in use has it long since.
    FOR p IN SELECT l.leaf::regclass AS leaf, x.relname AS index FROM {{schema}}.partition_list() l
        JOIN pg_class c ON c.oid = l.leaf AND c.relreplident = 'd'
        JOIN pg_index i ON i.indrelid = l.leaf AND i.indisunique AND i.indisvalid AND NOT i.indisprimary JOIN pg_inherits h ON h.inhrelid = i.indexrelid
        JOIN pg_class x ON x.oid = i.indexrelid
        WHERE h.inhparent = to_regclass('{{schema}}.outbox_xid')
    LOOP
        EXECUTE format('ALTER TABLE %s REPLICA IDENTITY USING INDEX %I', p.leaf, p.index);
    END LOOP;
    RETURN made;
END;
$$;
