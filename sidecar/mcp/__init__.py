"""An MCP server that provides coding agents with token counts, budgets and context usage."""
