"""Places orders: an order and its message are one transaction."""

import json
import os
import sys

import psycopg


def place_order(conn: psycopg.Connection, order: str, item: str) -> None:
    with conn.transaction():  # both rows or none
        conn.execute("INSERT INTO orders (id, item) VALUES (%s, %s)", (order, item))
        conn.execute(
            "INSERT INTO postrider.outbox (topic, key, type, payload, content_type)"
            " VALUES ('orders', %s, 'order.placed', %s, 'application/json')",
            (order, json.dumps({"order": order, "item": item}).encode()),
        )


if __name__ == "__main__":
    with psycopg.connect(os.environ["DATABASE_URL"], autocommit=True) as conn:
        for order in sys.argv[1:]:
            place_order(conn, order, "book")
