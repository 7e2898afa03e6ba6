"""Asks model servers and vendors for token counts and context windows over HTTP."""
