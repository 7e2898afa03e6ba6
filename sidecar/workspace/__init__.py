"""What one workspace root knows: its documents' counts, its context, its verdicts, its status."""
