"""Prints the messages of a queue: sqs_reader.py ENDPOINT QUEUE COUNT.

Each line has a header's name and its value in Base64; "key" is the group, and a line
"payload" ends a message.
"""

import base64
import json
import sys

import boto3

endpoint, queue, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
sqs = boto3.client(
    "sqs", endpoint_url=endpoint, region_name="us-east-1", aws_access_key_id="key", aws_secret_access_key="secret"
)
url = sqs.get_queue_url(QueueName=queue)["QueueUrl"]


def show(name, value):
    print(name, base64.b64encode(value).decode(), sep="\t")


while count > 0:
    received = sqs.receive_message(
        QueueUrl=url,
        MaxNumberOfMessages=1,
        WaitTimeSeconds=5,
        MessageAttributeNames=["All"],
        MessageSystemAttributeNames=["MessageGroupId"],
    )
    for message in received.get("Messages", []):
        headers = {name: a["StringValue"] for name, a in message.get("MessageAttributes", {}).items()}
        headers |= json.loads(headers.pop("postrider-headers", "{}"))
        body = headers.pop("postrider-body", "")
        payload = (
            base64.b64decode(message["Body"]) if body == "base64" else b"" if body == "empty" else message["Body"].encode()
        )
        show("key", message["Attributes"]["MessageGroupId"].encode())
        for name, value in headers.items():
            show(name, value.encode())
        show("payload", payload)
        sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
        count -= 1
