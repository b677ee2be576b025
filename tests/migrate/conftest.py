"""The projects are made to be migrated: their own tests run in a child process, not here."""

collect_ignore = ["projects"]
