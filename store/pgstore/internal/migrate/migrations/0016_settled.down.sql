CREATE OR REPLACE FUNCTION {{schema}}.partition_drop(older interval, only_empty boolean, patience integer,
    OUT victim bigint, OUT removed bigint, OUT held_by text) LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET jit = off AS $$
DECLARE
    v record;
    p record;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'partitions are dropped in READ COMMITTED: every look must be a new one' USING ERRCODE = '25001';
    END IF;
    SELECT l.number, l.name, l.above, array_to_string(c.reloptions, ', ') AS opts, k.closed_at INTO v
    FROM {{schema}}.partition k JOIN {{schema}}.partition_list() l USING (number) JOIN pg_class c ON c.oid = l.leaf
    WHERE k.closed_at IS NOT NULL ORDER BY k.number LIMIT 1;
    IF NOT FOUND OR v.number >= {{schema}}.partition_now() OR v.closed_at > clock_timestamp() - older THEN
        RETURN;
    END IF;
    victim := v.number;
    -- Nobody waits behind these, and a vacuum gives way after a second.
    PERFORM set_config('lock_timeout', 10 * patience || 'ms', true);
    LOCK TABLE {{schema}}.pipe IN ROW EXCLUSIVE MODE; -- who adds one that begins in the past takes a stronger lock
    FOR p IN SELECT l.name FROM {{schema}}.partition_list() l WHERE l.number <= v.number LOOP
        EXECUTE format('LOCK TABLE {{schema}}.%I IN SHARE MODE', p.name);
    END LOOP;
    held_by := {{schema}}.partition_holder(v.above);
    IF held_by IS NULL AND only_empty THEN
        EXECUTE format('SELECT ''(archive)'' FROM {{schema}}.outbox WHERE seq < %s LIMIT 1', v.above) INTO held_by;
    END IF;
    IF held_by IS NOT NULL THEN
        RETURN;
    END IF;
    removed := {{schema}}.partition_book(v.above);
    PERFORM set_config('lock_timeout', patience || 'ms', true);
    LOCK TABLE ONLY {{schema}}.outbox IN ACCESS EXCLUSIVE MODE; -- without ONLY a vacuum of any partition would be in the way
    IF v.number >= {{schema}}.partition_now() THEN -- the sequence was set back meanwhile
        RAISE EXCEPTION 'the sequence stands below % again', v.above USING ERRCODE = 'lock_not_available';
    END IF;
    FOR p IN SELECT l.name FROM {{schema}}.partition_list() l WHERE l.number <= v.number LOOP
        EXECUTE format('DROP TABLE {{schema}}.%I', p.name);
    END LOOP;
    EXECUTE format('CREATE TABLE {{schema}}.%I PARTITION OF {{schema}}.outbox FOR VALUES FROM (MINVALUE) TO (%s) %s',
        v.name, v.above, 'WITH (' || v.opts || ')');
    DELETE FROM {{schema}}.partition k WHERE k.number <= v.number;
END;
$$;
CREATE OR REPLACE FUNCTION {{schema}}.partition_due(older interval, keep bigint, OUT victims integer, OUT doomed bigint, OUT held_by text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off AS $$
DECLARE
    p     record;
    bytes bigint;
    below bigint := -9223372036854775808;
    rows  bigint;
BEGIN
    victims := 0;
    doomed := 0;
    SELECT sum(pg_total_relation_size(l.leaf)) INTO bytes FROM {{schema}}.partition_list() l;
    FOR p IN SELECT l.leaf, l.above, k.closed_at FROM {{schema}}.partition k JOIN {{schema}}.partition_list() l USING (number)
        WHERE k.closed_at IS NOT NULL AND l.number < {{schema}}.partition_now() ORDER BY l.number
    LOOP
        EXIT WHEN p.closed_at > clock_timestamp() - older AND NOT (keep > 0 AND bytes > keep);
        held_by := {{schema}}.partition_holder(p.above);
        EXIT WHEN held_by IS NOT NULL;
        EXECUTE format('SELECT count(*) FROM {{schema}}.outbox o WHERE o.seq >= %s AND o.seq < %s', below, p.above) INTO rows;
        victims := victims + 1;
        doomed := doomed + rows;
        bytes := bytes - pg_total_relation_size(p.leaf);
        below := p.above;
    END LOOP;
END;
$$;
DROP FUNCTION {{schema}}.partition_young(bigint, interval);
