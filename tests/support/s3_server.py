"""A local S3 server for tests, and the environment by which every process finds it."""

import logging
from contextlib import contextmanager

import boto3
from moto.server import ThreadedMotoServer

BUCKET = "bucket"
KEYS = {
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "test",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}


@contextmanager
def s3_server():
    """Run a server with one empty bucket; gives the environment for clients."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # no line a request
    server.start()
    try:
        host, port = server.get_host_and_port()
        endpoint = f"http://{host}:{port}"
        client = boto3.client(
            "s3",
            endpoint_url=endpoint,
            aws_access_key_id="test",
            aws_secret_access_key="test",
            region_name="us-east-1",
        )
        client.create_bucket(Bucket=BUCKET)
        yield {**KEYS, "AWS_ENDPOINT_URL": endpoint}
    finally:
        server.stop()


def query(environment):
    """Return the options of a URI that say the same as the environment does."""
    endpoint = environment["AWS_ENDPOINT_URL"].removeprefix("http://").replace(":", "%3A")
    return f"?scheme=http&endpoint_override={endpoint}&region=us-east-1"
