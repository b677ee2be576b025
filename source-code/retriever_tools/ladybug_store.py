"""The embedded graph database: a ladybug file, searched by our retrievers over its data."""
