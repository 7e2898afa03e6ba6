"""Model servers and vendors: token counts over HTTP, limits, and what their replies say."""
