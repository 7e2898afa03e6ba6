"""Token budgets: the rules for a file, their findings, and fixes. Does no I/O."""
