"""Past one machine: ingest a corpus of any size with Ray Data, index it, and search it."""
