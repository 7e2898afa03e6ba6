"""Contains one session reader per agent."""
