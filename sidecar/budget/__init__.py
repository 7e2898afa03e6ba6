"""Token budgets: which rules a file has, what is over them and where, and how to mend it. Pure."""
