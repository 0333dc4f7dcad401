-- put: jobs that the master has just assigned to this bucket, put there by a producer.
-- keys: meta assigned wake pending
-- args: epoch high_water_jobs high_water_bytes (due_us entry)...
-- answers: OK depth | FULL depth | NOBUCKET | FENCED | CLOSED
-- effects: assigned +n, without copies that clients have recalled; a wake token when something is due earlier than before
-- flags: none
-- why: the row names (bucket, epoch); a copy in a bucket of another epoch could never be recorded. The same entry again is
--      the same member of the sorted set. They are due now, so they wait in the same queue as pending and count with it. Of
--      earlier builds come 3 keys and no limits.

redis.register_function{
  function_name = 'jm2_put',
  callback = function(keys, args)
    local limited, first = #keys == 4, #keys == 4 and 4 or 2
    local jobs_max, bytes_max = whole(args[2]), whole(args[3])
    if #keys < 3 or #keys > 4 or not whole(args[1]) or (limited and not (jobs_max and bytes_max)) then
      return redis.error_reply('JMARGS put takes 4 keys, an epoch and 2 limits before the pairs')
    end
    local bad = bad_pair(args, first)
    if bad then
      return bad
    end
    local found = redis.call('HMGET', keys[1], 'epoch', 'state', 'bytes', 'recalled')
    if not found[1] then
      return { 'NOBUCKET' }
    end
    if found[1] ~= args[1] then
      return { 'FENCED' }
    end
    if not INTAKE[found[2]] then
      return { 'CLOSED' }
    end
    local depth, count = 0, (#args - first + 1) / 2
    if limited then
      local bytes
      depth, bytes = backlog(keys[4], keys[2], tonumber(found[3]) or 0, now_us())
      for i = first + 1, #args, 2 do
        bytes = bytes + #args[i]
      end
      if depth + count > jobs_max or bytes > bytes_max then
        return { 'FULL', depth }
      end
    end
    add_assigned(keys[2], keys[3], args, first, found[4])
    return { 'OK', depth + count }
  end,
}
