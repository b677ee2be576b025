"""What the book needs around its retrievers: corpus, profiles, chains and the `rag` command."""
