"""The LSP server. No other package imports pygls or lsprotocol."""
