"""Messages, tool schemas, media, usage and replies in every vendor's form."""
