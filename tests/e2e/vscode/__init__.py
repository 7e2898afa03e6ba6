"""Tests of a real VS Code: code-server in Chromium, checked from inside its extension host."""
