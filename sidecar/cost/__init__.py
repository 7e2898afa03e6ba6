"""What calls cost: the ledger, prices, reports, caps and exports."""
