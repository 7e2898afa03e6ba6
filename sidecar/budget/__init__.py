"""Token budgets: rules, findings and fixes. Does no I/O."""
