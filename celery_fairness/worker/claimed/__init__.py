"""Workers on ``fairredis``: tasks that were claimed, from their arrival to their end."""
