"""Move a project away from LangChain's retired classes: find them, and rewrite what is safe."""
