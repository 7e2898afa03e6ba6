"""Call costs: the ledger, prices, reports, caps and exports."""
