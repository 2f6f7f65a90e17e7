package migrate

import (
	"strconv"
	"strings"

	"github.com/postrider/postrider/store/pgstore/internal/db"
)

// convertSQL returns the statements that convert a plain outbox into a partitioned one. Each
// is the work of one transaction and detects whether it is already done.
func (st *texts) convertSQL(q func(string) string) {
	st.kind = q(`SELECT c.relkind::text FROM pg_class c WHERE c.oid = '{{schema}}.outbox'::regclass`)
	// Objects that refer to the table and cannot be recreated from their text.
	st.obstacles = q(`SELECT what FROM (
 SELECT 'materialized view ' || w.ev_class::regclass FROM pg_depend d JOIN pg_rewrite w ON d.classid = 'pg_rewrite'::regclass AND w.oid = d.objid
  JOIN pg_class c ON c.oid = w.ev_class AND c.relkind = 'm' WHERE d.refclassid = 'pg_class'::regclass AND d.refobjid = '{{schema}}.outbox'::regclass
 UNION SELECT 'rule ' || w.rulename FROM pg_rewrite w WHERE w.ev_class = '{{schema}}.outbox'::regclass
 UNION SELECT 'foreign key ' || f.conname || ' of ' || f.conrelid::regclass FROM pg_constraint f
  WHERE f.contype = 'f' AND '{{schema}}.outbox'::regclass IN (f.conrelid, f.confrelid)
 UNION SELECT 'publication ' || p.pubname FROM pg_publication_rel r JOIN pg_publication p ON p.oid = r.prpubid
  WHERE r.prrelid = '{{schema}}.outbox'::regclass
 UNION SELECT 'inheritance of ' || i.inhrelid::regclass FROM pg_inherits i WHERE '{{schema}}.outbox'::regclass IN (i.inhrelid, i.inhparent)
 UNION SELECT 'policy ' || p.polname FROM pg_policy p WHERE p.polrelid = '{{schema}}.outbox'::regclass
 UNION SELECT 'row security' FROM pg_class c WHERE c.oid = '{{schema}}.outbox'::regclass AND c.relrowsecurity
 UNION SELECT 'not being owned by ' || current_user FROM pg_class c
  WHERE c.oid = '{{schema}}.outbox'::regclass AND NOT pg_has_role(c.relowner, 'USAGE')
) x(what) ORDER BY 1`)
	st.bound = q(boundTable)
	st.validate = q(`ALTER TABLE {{schema}}.outbox VALIDATE CONSTRAINT outbox_partition_bound`)
	st.swap = q(strings.Replace(swapTable, "{{ahead}}", strconv.Itoa(db.PartitionsAhead), 1))
	// The session that keeps session $1 waiting, and at which table; of several the
	// oldest. A prepared transaction has no process.
	st.inTheWay = `WITH me AS MATERIALIZED (SELECT l.relation, pg_blocking_pids($1::integer) AS pids FROM pg_locks l
  WHERE l.pid = $1::integer AND NOT l.granted LIMIT 1)
SELECT coalesce((SELECT n.nspname || '.' || c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = me.relation), 'the schema'),
 b.pid, coalesce(a.application_name, ''), coalesce(x.gid, ''), coalesce(extract(epoch FROM clock_timestamp() - coalesce(a.xact_start, x.prepared)), 0)::float8
FROM me CROSS JOIN unnest(me.pids) AS b(pid) LEFT JOIN pg_stat_activity a ON a.pid = b.pid
LEFT JOIN LATERAL (SELECT p.gid, p.prepared FROM pg_prepared_xacts p JOIN pg_locks t ON t.transactionid = p.transaction AND t.pid IS NULL
  JOIN pg_locks k ON k.pid IS NULL AND k.virtualtransaction = t.virtualtransaction WHERE b.pid = 0 AND k.relation = me.relation ORDER BY p.prepared LIMIT 1) x ON true
ORDER BY coalesce(a.xact_start, x.prepared) NULLS LAST LIMIT 1`
}

// boundTable bounds the numbers of the present table, which becomes the first partition. The
// bound is so far away (100 to 200 thousand million numbers) that writers do not reach it,
// even if the conversion is never finished. A bound that has come near is replaced.
const boundTable = `DO $bound$
DECLARE
    size  bigint := {{schema}}.partition_size();
    bound bigint := ({{schema}}.partition_now() + 2) * size;
    found bigint;
BEGIN
    SELECT substring(pg_get_constraintdef(c.oid) FROM $x$seq < '?([0-9]+)$x$)::bigint INTO found FROM pg_constraint c
    WHERE c.conrelid = '{{schema}}.outbox'::regclass AND c.conname = 'outbox_partition_bound';
    IF found - (SELECT q.last_value FROM {{schema}}.outbox_seq q) >= size / 2 OR (SELECT c.relkind FROM pg_class c WHERE c.oid = '{{schema}}.outbox'::regclass) = 'p' THEN
        RETURN;
    END IF;
    LOCK TABLE {{schema}}.outbox IN ACCESS EXCLUSIVE MODE;
    ALTER TABLE {{schema}}.outbox DROP CONSTRAINT IF EXISTS outbox_partition_bound;
    EXECUTE format('ALTER TABLE {{schema}}.outbox ADD CONSTRAINT outbox_partition_bound CHECK (seq IS NOT NULL AND seq < %s) NOT VALID', bound);
END;
$bound$`

// swapTable replaces the plain table with a partitioned one. The plain table becomes the first
// partition without a scan, because the constraint proves that its rows are below the bound.
// Views, functions and triggers refer to a table by its identity, not by its name, so they are
// recreated from their texts.
const swapTable = `DO $swap$
DECLARE
    old   oid;
    size  bigint := {{schema}}.partition_size();
    bound bigint;
    leaf  text;
    doing text;
    after text[] := '{}';
    r     record;
BEGIN
    LOCK TABLE {{schema}}.outbox IN ACCESS EXCLUSIVE MODE;
    old := '{{schema}}.outbox'::regclass;
    IF (SELECT c.relkind FROM pg_class c WHERE c.oid = old) = 'p' THEN
        RETURN;
    END IF;
    SELECT substring(pg_get_constraintdef(c.oid) FROM $x$seq < '?([0-9]+)$x$)::bigint INTO bound FROM pg_constraint c
    WHERE c.conrelid = old AND c.conname = 'outbox_partition_bound' AND c.convalidated;
    IF bound IS NULL OR bound <= {{schema}}.partition_now() * size THEN
        RAISE EXCEPTION 'the bound of the first partition is gone' USING ERRCODE = 'lock_not_available';
    END IF;
    leaf := 'outbox_p' || bound / size - 1;

    FOR r IN SELECT DISTINCT c.oid::regclass AS name, 'WITH (' || array_to_string(c.reloptions, ', ') || ')' AS opts, pg_get_viewdef(c.oid) AS body
        FROM pg_depend d JOIN pg_rewrite w ON d.classid = 'pg_rewrite'::regclass AND w.oid = d.objid
        JOIN pg_class c ON c.oid = w.ev_class AND c.relkind = 'v'
        WHERE d.refclassid = 'pg_class'::regclass AND d.refobjid = old
    LOOP
        after := after || format('CREATE OR REPLACE VIEW %s %s AS %s', r.name, r.opts, r.body);
    END LOOP;
    FOR r IN SELECT DISTINCT pg_get_functiondef(d.objid) AS body FROM pg_depend d
        WHERE d.classid = 'pg_proc'::regclass AND d.refclassid = 'pg_class'::regclass AND d.refobjid = old
    LOOP
        after := after || r.body;
    END LOOP;
    FOR r IN SELECT t.tgname AS name, pg_get_triggerdef(t.oid) AS body, t.tgenabled AS mode FROM pg_trigger t WHERE t.tgrelid = old AND NOT t.tgisinternal
    LOOP
        EXECUTE format('DROP TRIGGER %I ON {{schema}}.outbox', r.name);
        after := after || r.body;
        IF r.mode <> 'O' THEN
            after := after || format('ALTER TABLE {{schema}}.outbox %s TRIGGER %I',
                CASE r.mode WHEN 'D' THEN 'DISABLE' WHEN 'R' THEN 'ENABLE REPLICA' ELSE 'ENABLE ALWAYS' END, r.name);
        END IF;
    END LOOP;
    FOR r IN SELECT x.grantee, x.privilege_type AS what, x.is_grantable, NULL::name AS col
            FROM pg_class c CROSS JOIN LATERAL aclexplode(c.relacl) x WHERE c.oid = old
        UNION ALL SELECT x.grantee, x.privilege_type, x.is_grantable, a.attname
            FROM pg_attribute a CROSS JOIN LATERAL aclexplode(a.attacl) x WHERE a.attrelid = old AND NOT a.attisdropped
    LOOP
        after := after || format('GRANT %s%s ON {{schema}}.outbox TO %s%s', r.what, ' (' || quote_ident(r.col) || ')',
            CASE WHEN r.grantee = 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(r.grantee)) END,
            CASE WHEN r.is_grantable THEN ' WITH GRANT OPTION' ELSE '' END);
    END LOOP;
    IF obj_description(old, 'pg_class') IS NOT NULL THEN
        after := after || format('COMMENT ON TABLE {{schema}}.outbox IS %L', obj_description(old, 'pg_class'));
    END IF;

    EXECUTE format('ALTER TABLE {{schema}}.outbox RENAME TO %I', leaf);
    EXECUTE format('ALTER INDEX {{schema}}.outbox_pkey RENAME TO %I', leaf || '_pkey');
    EXECUTE format('ALTER INDEX {{schema}}.outbox_xid RENAME TO %I', leaf || '_xid_idx');
    EXECUTE format('CREATE TABLE {{schema}}.outbox (LIKE {{schema}}.%I INCLUDING ALL) PARTITION BY RANGE (seq)', leaf);
    ALTER TABLE {{schema}}.outbox DROP CONSTRAINT outbox_partition_bound;
    ALTER INDEX IF EXISTS {{schema}}.outbox_xid_idx RENAME TO outbox_xid;
    ALTER INDEX IF EXISTS {{schema}}.outbox_xid_seq_idx RENAME TO outbox_xid;
    IF (SELECT i.indisunique FROM pg_index i WHERE i.indexrelid = '{{schema}}.outbox_xid'::regclass) THEN
        ALTER TABLE {{schema}}.outbox REPLICA IDENTITY USING INDEX outbox_xid;
    END IF;
    EXECUTE format('ALTER TABLE {{schema}}.outbox OWNER TO %I', (SELECT pg_get_userbyid(c.relowner) FROM pg_class c WHERE c.oid = old));
    EXECUTE format('ALTER TABLE {{schema}}.outbox ATTACH PARTITION {{schema}}.%I FOR VALUES FROM (MINVALUE) TO (%s)', leaf, bound);
    FOREACH doing IN ARRAY after LOOP
        EXECUTE doing;
    END LOOP;
    PERFORM {{schema}}.partition_make({{ahead}});
    PERFORM {{schema}}.partition_note();
END;
$swap$`
