-- compatible: 1
-- Partitions by ranges of numbers, for outboxes that `postrider migrate
-- --partition` has converted; the others are not touched. A partition has room
-- for 100,000,000,000 numbers. It does not fill up: when it has stood long
-- enough the sequence moves on to the next one. So it needs no estimate of a
-- rate, and when nobody tends partitions for a year the one in use grows.

-- When a partition came into use, and since when none of its numbers is drawn
-- any more. What was emptied has no row.
CREATE TABLE {{schema}}.partition (
    number    bigint PRIMARY KEY, -- its numbers are below (number + 1) * partition_size()
    opened_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    closed_at timestamptz
);

CREATE FUNCTION {{schema}}.partition_size() RETURNS bigint LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN 100000000000;

-- The partitions of the outbox, as the catalog has them; none of a plain one.
-- PL/pgSQL, so that it finds the outbox by its name also after a conversion.
CREATE FUNCTION {{schema}}.partition_list() RETURNS TABLE (number bigint, leaf oid, name name, above bigint)
LANGUAGE plpgsql STABLE ROWS 12 SET search_path = pg_catalog, pg_temp SET jit = off AS $$
BEGIN
    RETURN QUERY
    SELECT x.above / {{schema}}.partition_size() - 1, x.oid, x.relname, x.above FROM (
        SELECT c.oid, c.relname,
               substring(pg_get_expr(c.relpartbound, c.oid) FROM $x$TO \('?([0-9]+)'?\)$x$)::bigint AS above
        FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
        WHERE i.inhparent = to_regclass('{{schema}}.outbox')) x
    ORDER BY 1;
END;
$$;

-- The partition that the next number belongs to. The lowest one holds everything
-- below it too.
CREATE FUNCTION {{schema}}.partition_now() RETURNS bigint LANGUAGE sql VOLATILE
BEGIN ATOMIC
    SELECT greatest((CASE WHEN q.is_called THEN q.last_value + 1 ELSE q.last_value END) / {{schema}}.partition_size(),
        (SELECT min(l.number) FROM {{schema}}.partition_list() l)) FROM {{schema}}.outbox_seq q;
END;

-- What follows changes tables: it runs as their owner, one at a time, and is
-- for the roles that tend the outbox. Whoever does not get a lock in time gets
-- an error and tries again.

-- Keeps the table partition: the one in use is open, those before it are not.
CREATE FUNCTION {{schema}}.partition_note() RETURNS void LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET jit = off AS $$
DECLARE
    here bigint := {{schema}}.partition_now();
    p    record;
    used boolean;
BEGIN
    UPDATE {{schema}}.partition SET closed_at = clock_timestamp() WHERE number < here AND closed_at IS NULL;
    UPDATE {{schema}}.partition SET closed_at = NULL WHERE number = here AND closed_at IS NOT NULL;
    FOR p IN SELECT l.* FROM {{schema}}.partition_list() l
        WHERE l.number <= here AND NOT EXISTS (SELECT 1 FROM {{schema}}.partition k WHERE k.number = l.number)
    LOOP
        used := p.number = here;
        IF NOT used THEN -- the lowest one was emptied, unless numbers were set back into it
            EXECUTE format('SELECT EXISTS (SELECT 1 FROM %s)', p.leaf::regclass) INTO used;
        END IF;
        IF used THEN
            INSERT INTO {{schema}}.partition (number, closed_at)
            VALUES (p.number, CASE WHEN p.number < here THEN clock_timestamp() END) ON CONFLICT DO NOTHING;
        END IF;
    END LOOP;
END;
$$;

-- Makes partitions until so many wait behind the one in use, and returns how
-- many it made. To attach a table blocks neither writers nor readers, and waits
-- for no transaction of theirs.
CREATE FUNCTION {{schema}}.partition_make(ahead integer) RETURNS integer LANGUAGE plpgsql SECURITY DEFINER
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

-- Moves the sequence on to the next partition when the one in use has stood for
-- so long, or takes so many bytes and has stood for a sixth of that. Returns
-- the partition in use from then on, or NULL. Numbers only grow, so it is what
-- a large transaction that rolls back does to them.
CREATE FUNCTION {{schema}}.partition_roll(every interval, bytes bigint) RETURNS bigint LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET jit = off AS $$
DECLARE
    here bigint;
    size bigint := {{schema}}.partition_size();
    p    record;
    used boolean;
BEGIN
    -- Two at once would set the sequence back.
    IF NOT pg_try_advisory_xact_lock(hashtextextended('postrider migrate ' || trim('"' FROM '{{schema}}'), 0)) THEN
        RETURN NULL;
    END IF;
    here := {{schema}}.partition_now();
    SELECT clock_timestamp() - k.opened_at AS age, pg_total_relation_size(l.leaf) AS bytes,
           (SELECT n.leaf FROM {{schema}}.partition_list() n WHERE n.number = here + 1) AS next,
           coalesce((SELECT max(n.above) FROM {{schema}}.partition_list() n WHERE n.number < here), 0) AS below INTO p
    FROM {{schema}}.partition_list() l JOIN {{schema}}.partition k USING (number) WHERE l.number = here;
    IF NOT FOUND OR p.next IS NULL OR p.age < every / 6 OR p.age < every AND p.bytes < partition_roll.bytes THEN
        RETURN NULL;
    END IF;
    EXECUTE format('SELECT EXISTS (SELECT 1 FROM %s)', p.next::regclass) INTO used;
    IF used THEN -- the sequence stood there once and was set back
        RETURN NULL;
    END IF;
    -- A transaction that has inserted, and takes no lock since, knows the
    -- partitions of that time: one that was made later it does not find. Who holds
    -- the lock and has no id yet may have had it for as long.
    WITH locks AS MATERIALIZED (SELECT * FROM pg_locks WHERE granted)
    SELECT EXISTS (SELECT 1 FROM locks l CROSS JOIN pg_inherits i
        WHERE l.relation = to_regclass('{{schema}}.outbox') AND l.mode = 'RowExclusiveLock' AND l.pid <> pg_backend_pid()
          AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database()) AND i.inhrelid = p.next
          AND age(i.xmin) BETWEEN 0 AND coalesce((SELECT max(age(t.transactionid)) FROM locks t
            WHERE t.pid = l.pid AND t.locktype = 'transactionid' AND t.mode = 'ExclusiveLock'), 2147483647)) INTO used;
    IF used THEN
        RETURN NULL;
    END IF;
    -- Unused, or so nearly full that writers may get there first and the
    -- sequence would be set back.
    -- Nor one that stands below a cursor, because it was set back: readers find
    -- that out by where it stands.
    SELECT q.is_called AND q.last_value BETWEEN greatest(p.below, (SELECT max(c.pos) FROM {{schema}}.lane_cursor c))
        AND (here + 1) * size - 1000000000 INTO used FROM {{schema}}.outbox_seq q;
    IF NOT used THEN
        RETURN NULL;
    END IF;
    PERFORM setval('{{schema}}.outbox_seq'::regclass, (here + 1) * size, false);
    PERFORM {{schema}}.partition_note();
    RETURN here + 1;
END;
$$;

-- Drops the oldest partition if none of its numbers has been drawn for so long
-- and every reader has settled every row of it. It locks what it looks at: the
-- pipes against new ones, and the partition against whoever has inserted into
-- it. Then no row of it can be invisible, and none can come. The outbox itself is
-- locked at the end, so that no INSERT is under way, and for a moment only.
-- The room below is kept, empty: a sequence that is set back finds a place.
CREATE FUNCTION {{schema}}.partition_drop(older interval, only_empty boolean, patience integer,
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

-- What partition_drop would drop now, and how many rows with it, one partition
-- after the other; keep above 0: also before their time while all partitions
-- take more bytes. It locks nothing, so it may be wrong in a moment.
CREATE FUNCTION {{schema}}.partition_due(older interval, keep bigint, OUT victims integer, OUT doomed bigint, OUT held_by text)
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

-- Who has not settled every row below a number, or NULL: a pipe, or in
-- parentheses what makes "settled" mean nothing. A row behind a cursor whose
-- transaction began after the cursor's last look comes from a sequence that was
-- set back: the relay is going to look again.
CREATE FUNCTION {{schema}}.partition_holder(above bigint) RETURNS text LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp SET jit = off AS $$
DECLARE
    who text;
BEGIN
    SELECT CASE WHEN i.cluster <> (pg_control_system()).system_identifier THEN '(another server)'
                WHEN b.restore_epoch <> i.restore_epoch THEN '(books)'
                WHEN NOT EXISTS (SELECT 1 FROM {{schema}}.pipe) THEN '(no pipe)'
                WHEN s.last_value < (SELECT max(c.pos) FROM {{schema}}.lane_cursor c) THEN '(sequence)' END INTO who
    FROM {{schema}}.outbox_info i CROSS JOIN {{schema}}.book_cursor b CROSS JOIN {{schema}}.outbox_seq s;
    IF who IS NULL THEN
        EXECUTE format($x$SELECT c.pipe FROM {{schema}}.lane_cursor c
        WHERE EXISTS (SELECT 1 FROM {{schema}}.outbox o WHERE o.lane = c.lane AND o.seq > c.pos AND o.seq < %s)
        LIMIT 1$x$, above) INTO who;
    END IF;
    IF who IS NULL THEN
        EXECUTE format($x$SELECT c.pipe FROM {{schema}}.lane_cursor c
        WHERE EXISTS (SELECT 1 FROM unnest(c.inflight + c.draining) AS r(xids)
               CROSS JOIN LATERAL (SELECT 1 FROM {{schema}}.outbox o WHERE o.xid >= lower(r.xids)::text::xid8
                 AND o.xid < upper(r.xids)::text::xid8 AND o.seq < %1$s AND o.lane + 0::smallint = c.lane
                 AND NOT {{schema}}.settled(o.seq, o.xid, c.pos, c.low, c.inflight, c.draining, c.drain_seq) LIMIT 1) x)
           OR EXISTS (SELECT 1 FROM {{schema}}.outbox o WHERE o.xid >= c.next_xid::text::xid8 AND o.seq < %1$s
                 AND o.lane + 0::smallint = c.lane AND o.seq > c.floor)
        LIMIT 1$x$, above) INTO who;
    END IF;
    IF who IS NULL THEN -- the books count a row before it goes
        EXECUTE format($x$SELECT '(books)' FROM {{schema}}.keeper k
        WHERE EXISTS (SELECT 1 FROM {{schema}}.outbox o WHERE o.lane = k.lane AND o.seq > k.pos AND o.seq < %1$s)
           OR EXISTS (SELECT 1 FROM unnest(k.inflight) AS r(xids)
               CROSS JOIN LATERAL (SELECT 1 FROM {{schema}}.outbox o WHERE o.xid >= lower(r.xids)::text::xid8
                 AND o.xid < upper(r.xids)::text::xid8 AND o.seq < %1$s AND o.lane + 0::smallint = k.lane
                 AND NOT {{schema}}.settled(o.seq, o.xid, k.pos, k.low, k.inflight, '{}', 0) LIMIT 1) x)
        LIMIT 1$x$, above) INTO who;
    END IF;
    RETURN who;
END;
$$;

-- Books the rows below a number as removed, and returns how many there are. The
-- server's count of deleted rows, by which the books find strange deletions,
-- goes with the tables.
CREATE FUNCTION {{schema}}.partition_book(above bigint) RETURNS bigint LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp SET jit = off AS $$
DECLARE
    rows bigint;
    dels bigint;
BEGIN
    IF NOT pg_try_advisory_xact_lock(hashtextextended('postrider books ' || trim('"' FROM '{{schema}}'), 0)) THEN
        RAISE EXCEPTION 'somebody looks at the books' USING ERRCODE = 'lock_not_available';
    END IF;
    EXECUTE format($x$WITH n AS (SELECT o.lane, count(*) AS n FROM {{schema}}.outbox o WHERE o.seq < %s GROUP BY o.lane),
        booked AS (UPDATE {{schema}}.book_lane b SET removed = b.removed + n.n FROM n WHERE b.lane = n.lane)
        SELECT coalesce(sum(n.n), 0)::bigint FROM n$x$, above) INTO rows;
    SELECT coalesce(sum(t.n_tup_del), 0)::bigint INTO dels
    FROM {{schema}}.partition_list() l JOIN pg_stat_all_tables t ON t.relid = l.leaf WHERE l.above <= partition_book.above;
    UPDATE {{schema}}.book_cursor SET deleted = greatest(deleted - dels, 0), strange = strange - dels - rows;
    RETURN rows;
END;
$$;

REVOKE ALL ON FUNCTION {{schema}}.partition_note(), {{schema}}.partition_make(integer), {{schema}}.partition_roll(interval, bigint),
    {{schema}}.partition_drop(interval, boolean, integer), {{schema}}.partition_due(interval, bigint), {{schema}}.partition_holder(bigint), {{schema}}.partition_book(bigint) FROM PUBLIC;
