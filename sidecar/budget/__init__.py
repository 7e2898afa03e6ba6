"""Token budgets: the rules for a file, their findings, and fixes. Pure."""
