"""The parts of a message: headers, tenant, limits and queue."""
