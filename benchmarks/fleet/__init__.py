"""A fleet in virtual time: agents, stores, master and producers as events, from measured unit costs."""
