"""Prints the messages of a subscription: pubsub_reader.py PROJECT SUBSCRIPTION COUNT.

PUBSUB_EMULATOR_HOST names the emulator. Each line has a header's name and its value in
Base64; "key" is the ordering key, and a line "payload" ends a message.
"""

import base64
import json
import sys
import threading

from google.cloud import pubsub_v1

project, subscription, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
lock, done = threading.Lock(), threading.Event()
left = count


def lines(message):
    a = dict(message.attributes)
    text = "".join(
        a[n] for n in sorted((n for n in a if n.startswith("postrider-headers-")), key=lambda n: int(n[18:]))
    )
    headers = {n: v for n, v in a.items() if not n.startswith("postrider-headers-")} | json.loads(text or "{}")
    yield "key", message.ordering_key.encode()
    yield from ((n, v.encode()) for n, v in headers.items())
    yield "payload", message.data


def handle(message):
    global left
    with lock:
        for name, value in lines(message):
            print(name, base64.b64encode(value).decode(), sep="\t")
        message.ack()
        left -= 1
        if left == 0:
            done.set()


with pubsub_v1.SubscriberClient() as client:
    stream = client.subscribe(client.subscription_path(project, subscription), handle)
    done.wait(60)
    stream.cancel()
    stream.result()
