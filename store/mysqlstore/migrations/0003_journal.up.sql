-- What people did: who, when, what and why. `postrider migrate` guards it by triggers
-- where its user may make them, also behind these statements. An act that is carried out later has an entry with the result
-- 'asked', and another one with the same request for what came of it.
CREATE TABLE IF NOT EXISTS postrider_journal (
    id      BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
    at      BIGINT NOT NULL DEFAULT ({{now}}), -- microseconds since 1970
    actor   TEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    act     VARCHAR(64) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    pipe    VARCHAR(64) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL DEFAULT '', -- '' for the outbox
    lane    INT NULL,
    seq     BIGINT NOT NULL DEFAULT 0,
    `key`   VARBINARY(512) NOT NULL DEFAULT '',
    target  LONGTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NULL, -- a JSON object, never a payload
    reason  TEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    result  VARCHAR(16) CHARACTER SET ascii NOT NULL DEFAULT 'done',
    records BIGINT NULL, -- that it concerned
    request BIGINT NULL, -- of postrider_request
    KEY of_request (request),
    CONSTRAINT postrider_an_act_has_an_actor CHECK (actor <> '')
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4;
