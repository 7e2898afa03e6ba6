"""Model names, families, context windows, output limits and prices."""
