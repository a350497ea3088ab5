"""Views and changes for operators: limits, tenants, queues, tasks, events and statistics."""
