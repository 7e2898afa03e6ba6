"""Session files as coding agents write them, with exact known totals."""
