"""What a message carries: headers, the tenant, limits, and the queue that it goes to."""
