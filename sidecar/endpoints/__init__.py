"""Model servers and vendors over HTTP: probing, counting, context windows."""
