// Places orders: an order and its message are one transaction.
import pg from "pg";

async function placeOrder(client: pg.Client, order: string, item: string): Promise<void> {
  await client.query("BEGIN");
  try {
    await client.query("INSERT INTO orders (id, item) VALUES ($1, $2)", [order, item]);
    await client.query(
      `INSERT INTO postrider.outbox (topic, key, type, payload, content_type)
       VALUES ('orders', $1, 'order.placed', $2, 'application/json')`,
      [order, Buffer.from(JSON.stringify({ order, item }))],
    );
    await client.query("COMMIT"); // both rows or none
  } catch (err) {
    await client.query("ROLLBACK");
    throw err;
  }
}

const client = new pg.Client({ connectionString: process.env.DATABASE_URL });
await client.connect();
try {
  for (const order of process.argv.slice(2)) {
    await placeOrder(client, order, "book");
  }
} finally {
  await client.end();
}
