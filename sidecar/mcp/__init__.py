"""Tools for coding agents over the Model Context Protocol: token counts, budgets and context."""
