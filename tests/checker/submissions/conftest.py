"""These files are read by the checker, never by pytest."""

collect_ignore_glob = ["[0-9]*.py"]
