"""Tests with a real VS Code, which runs in code-server and Chromium."""
