"""What operators ask and change: limits, tenants, queues, tasks, events and statistics."""
