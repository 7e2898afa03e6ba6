"""What a message, a tool schema, an image, a usage and a reply are, in every vendor's form."""
