"""Run the `rag` command as `python -m ragbook`."""

from ragbook.cli import main

main()
