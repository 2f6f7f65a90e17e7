// Verifies requests, one in JSON a line: secret, headers, and the body in Base64. Prints "ok" or the error of each.
import { createRequire } from "node:module";
import readline from "node:readline";
const { Webhook } = createRequire(process.argv[2] + "/")("standardwebhooks");
for await (const line of readline.createInterface({ input: process.stdin })) {
  const { secret, headers, body } = JSON.parse(line);
  try {
    new Webhook(secret).verify(Buffer.from(body, "base64"), headers);
    console.log("ok");
  } catch (e) {
    console.log(e.message);
  }
}
