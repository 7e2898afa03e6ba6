"""The official MCP programs that the tests run, at pinned versions."""

from tests.e2e.agents.install import Package

CONFORMANCE = Package("npm", "@modelcontextprotocol/conformance", "0.1.16", "conformance")
INSPECTOR = Package("npm", "@modelcontextprotocol/inspector", "2.12.0", "mcp-inspector")
