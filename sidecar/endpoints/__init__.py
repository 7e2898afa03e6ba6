"""Model servers and vendors: token counts over HTTP, limits, and what they answer to a count."""
