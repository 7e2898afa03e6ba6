"""What is known of a model by its name: family, window, output limit, price, approximation."""
