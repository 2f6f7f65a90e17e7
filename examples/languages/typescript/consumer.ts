// Makes one invoice per order, however often the order's message comes.
//
// A line on standard input stands for a delivery of your broker, the line that
// is printed for its acknowledgement.
import { createInterface } from "node:readline";
import pg from "pg";

interface Message {
  id: string;
  topic: string;
  type: string;
  key: string;
  payload: string;
}

async function handle(client: pg.Client, m: Message): Promise<void> {
  await client.query("BEGIN");
  try {
    const claim = await client.query<{ first: boolean }>("SELECT postrider.claim($1, $2, $3, $4) AS first", [
      "billing-typescript",
      m.id,
      m.topic,
      m.type,
    ]);
    if (claim.rows[0]?.first) {
      // no transaction before this one has had the message
      await client.query("INSERT INTO invoice (consumer, order_id) VALUES ('billing-typescript', $1)", [m.key]);
    }
    await client.query("COMMIT");
  } catch (err) {
    await client.query("ROLLBACK"); // the claim too
    throw err;
  }
}

const client = new pg.Client({ connectionString: process.env.DATABASE_URL });
await client.connect();
try {
  for await (const line of createInterface({ input: process.stdin })) {
    const [id = "", topic = "", type = "", key = "", payload = ""] = line.split("\t");
    await handle(client, { id, topic, type, key, payload });
    console.log(`ack ${id}`); // only now: the effect is committed
  }
} finally {
  await client.end();
}
