"""VS Code, driven for real: code-server in Chromium, asserted from inside its extension host."""
