// Prints the messages of a subscription: pubsub.mjs LIBRARIES PROJECT SUBSCRIPTION COUNT. PUBSUB_EMULATOR_HOST names
// the emulator. Each line has a header's name and its value in Base64; "key" is the ordering key, and a line
// "payload" ends a message.
import { createRequire } from "node:module";
const [libraries, projectId, subscription, count] = process.argv.slice(2);
const { PubSub } = createRequire(libraries + "/")("@google-cloud/pubsub");
const show = (name, value) => console.log(name + "\t" + Buffer.from(value).toString("base64"));
const client = new PubSub({ projectId });
const stream = client.subscription(subscription);
let left = Number(count);
await new Promise((resolve, reject) => {
  stream.on("error", reject);
  stream.on("message", (m) => {
    const names = Object.keys(m.attributes);
    const parts = names.filter((n) => n.startsWith("postrider-headers-")).sort((a, b) => a.slice(18) - b.slice(18));
    const rest = JSON.parse(parts.map((n) => m.attributes[n]).join("") || "{}");
    show("key", m.orderingKey ?? "");
    for (const n of names) if (!parts.includes(n)) show(n, m.attributes[n]);
    for (const n in rest) show(n, rest[n]);
    show("payload", m.data);
    m.ack();
    if (--left === 0) resolve();
  });
});
await stream.close();
await client.close();
