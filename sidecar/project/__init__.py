"""A root folder: its files as git sees them, prompt files and the token map."""
