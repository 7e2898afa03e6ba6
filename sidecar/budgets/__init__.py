"""Token budgets: rules, findings and fixes, for editors, MCP and the command line."""
