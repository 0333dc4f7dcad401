"""How many buckets does each priority and lane need? A formula narrows it down, a replay of the real arrivals decides."""
