"""Costs of calls: the ledger, prices, reports, caps and exports."""
