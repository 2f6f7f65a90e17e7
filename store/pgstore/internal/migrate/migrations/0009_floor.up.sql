-- compatible: 1
-- What a lift of the sequence looks for again begins above the floor: the ids of
-- rows from another server say nothing. Only what is being delivered may lie below.
CREATE OR REPLACE VIEW {{schema}}.lane_cursor AS
SELECT p.name AS pipe, l.lane::smallint AS lane, coalesce(g.n, 0) AS n, coalesce(g.owner, '') AS owner,
       coalesce(g.pos, p.pos) AS pos,
       CASE WHEN i.reset_xid <= coalesce(g.next_xid, p.next_xid) THEN coalesce(g.low, i.floor)
            WHEN g.draining IS NULL THEN i.floor ELSE least(g.low, i.floor) END AS low,
       coalesce(g.next_xid, p.next_xid) AS next_xid,
       coalesce(g.delivered, 0) AS delivered, g.settled_at, coalesce(g.drain_seq, 0) AS drain_seq,
       coalesce(g.draining, '{}'::int8multirange) AS draining,
       CASE WHEN g.n IS NULL THEN p.running ELSE g.running END AS running,
       coalesce(r.xids, '{}'::int8multirange)
       + CASE WHEN i.reset_xid > coalesce(g.next_xid, p.next_xid)
              THEN int8multirange(int8range(coalesce(g.next_xid, p.next_xid), i.reset_xid))
              ELSE '{}'::int8multirange END AS inflight,
       i.floor
FROM {{schema}}.outbox_info i
CROSS JOIN {{schema}}.pipe p
CROSS JOIN generate_series(0, i.lanes - 1) AS l(lane)
LEFT JOIN LATERAL (SELECT * FROM {{schema}}.progress g
    WHERE g.pipe = p.name AND g.lane = l.lane ORDER BY g.n DESC LIMIT 1) g ON true
LEFT JOIN {{schema}}.running r ON r.id = CASE WHEN g.n IS NULL THEN p.running ELSE g.running END;
