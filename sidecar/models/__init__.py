"""Model names and their family, context window, output limit, price and approximation."""
