// Prints the messages of a queue: sqs.mjs LIBRARIES ENDPOINT QUEUE COUNT. Each line has a header's name and its
// value in Base64; "key" is the group, and a line "payload" ends a message.
import { createRequire } from "node:module";
const [libraries, endpoint, queue, count] = process.argv.slice(2);
const { SQS } = createRequire(libraries + "/")("@aws-sdk/client-sqs");
const sqs = new SQS({ endpoint, region: "us-east-1", credentials: { accessKeyId: "key", secretAccessKey: "secret" } });
const { QueueUrl } = await sqs.getQueueUrl({ QueueName: queue });
const show = (name, value) => console.log(name + "\t" + Buffer.from(value).toString("base64"));
for (let left = Number(count); left > 0; ) {
  const { Messages = [] } = await sqs.receiveMessage({
    QueueUrl, MaxNumberOfMessages: 1, WaitTimeSeconds: 5, MessageAttributeNames: ["All"], MessageSystemAttributeNames: ["MessageGroupId"],
  });
  for (const m of Messages) {
    const attributes = Object.fromEntries(Object.entries(m.MessageAttributes ?? {}).map(([name, a]) => [name, a.StringValue]));
    const { "postrider-headers": rest = "{}", "postrider-body": body, ...headers } = attributes;
    show("key", m.Attributes.MessageGroupId);
    for (const [name, value] of Object.entries({ ...headers, ...JSON.parse(rest) })) show(name, value);
    show("payload", body === "base64" ? Buffer.from(m.Body, "base64") : body === "empty" ? "" : m.Body);
    await sqs.deleteMessage({ QueueUrl, ReceiptHandle: m.ReceiptHandle });
    left--;
  }
}
