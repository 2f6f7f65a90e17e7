-- Which process removes settled rows: one at a time. A lease ends with alive_until.
-- One that lies further ahead than twice its ttl was written before the clock was
-- set back, and has ended too. epoch grows with each change of the runner.
CREATE TABLE postrider_retention (
    one         INTEGER PRIMARY KEY CHECK (one = 1),
    runner      TEXT NOT NULL DEFAULT '',
    epoch       INTEGER NOT NULL DEFAULT 0,
    ttl         INTEGER NOT NULL DEFAULT 0, -- microseconds, as the next one
    alive_until INTEGER NOT NULL DEFAULT 0
) STRICT;
INSERT INTO postrider_retention (one) VALUES (1);
