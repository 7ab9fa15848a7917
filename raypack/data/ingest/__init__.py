"""The prepare job: inputs cut into chunks, chunks made into shards by Ray Data."""
