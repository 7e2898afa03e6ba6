"""Model servers and vendors over HTTP: probing, counting, and context windows."""
