"""Makes one invoice per order, however often the order's message comes.

A line on standard input stands for a delivery of your broker, the line that is
printed for its acknowledgement.
"""

import os
import sys
from typing import NamedTuple

import psycopg


class Message(NamedTuple):
    id: str
    topic: str
    type: str
    key: str
    payload: str


def handle(conn: psycopg.Connection, m: Message) -> None:
    with conn.transaction():  # an error rolls back the claim too
        row = conn.execute(
            "SELECT postrider.claim(%s, %s, %s, %s)", ("billing-python", m.id, m.topic, m.type)
        ).fetchone()
        if row == (True,):  # no transaction before this one has had the message
            conn.execute(
                "INSERT INTO invoice (consumer, order_id) VALUES ('billing-python', %s)", (m.key,)
            )


if __name__ == "__main__":
    with psycopg.connect(os.environ["DATABASE_URL"], autocommit=True) as conn:
        for line in sys.stdin:
            message = Message(*line.rstrip("\n").split("\t"))
            handle(conn, message)
            print("ack", message.id, flush=True)  # only now: the effect is committed
