-- submit: append new jobs to a bucket, all of them or none.
-- keys: meta pending wake assigned
-- args: high_water_jobs high_water_bytes skew_ms_max entry...
-- answers: OK depth | NOBUCKET | CLOSED | FULL depth | SKEW offset_ms
-- effects: pending +n, meta.seq +n, meta.bytes +sizes, one wake token; nothing on any other answer
-- flags: none (refused when the store is out of memory: a producer must get this error before the bucket breaks its promise)
-- why: no fence, a producer owns nothing; the state in meta is the gate that close_intake and fence shut atomically.
--      What is due in assigned waits in the same queue as pending, so it counts toward the mark and the depth; without the
--      key, which earlier builds do not send, pending counts alone.
--      Every id is compared with this server's clock here, because the store is the first server that sees it.

redis.register_function{
  function_name = 'jm2_submit',
  callback = function(keys, args)
    local jobs_max, bytes_max, skew_max = whole(args[1]), whole(args[2]), whole(args[3])
    if #keys < 3 or #keys > 4 or not (jobs_max and bytes_max and skew_max) then
      return redis.error_reply('JMARGS submit takes 4 keys and 3 limits before the entries')
    end
    local unpack_ms = struct.unpack
    local last, size = #args, 0
    local low, high = math.huge, -math.huge
    for i = 4, last do
      local item = args[i]
      if not is_entry(item) then
        return redis.error_reply('JMARGS entry ' .. (i - 3) .. ' does not begin with a 16-byte id')
      end
      local ms = unpack_ms('>I6', item, 4)
      if ms < low then low = ms end
      if ms > high then high = ms end
      size = size + #item
    end
    local found = redis.call('HMGET', keys[1], 'state', 'bytes')
    if not found[1] then
      return { 'NOBUCKET' }
    end
    if not INTAKE[found[1]] then
      return { 'CLOSED' }
    end
    local now, bytes = now_us(), tonumber(found[2]) or 0
    local depth = keys[4] and 0 or redis.call('LLEN', keys[2])
    if keys[4] then
      depth, bytes = backlog(keys[2], keys[4], bytes, now)
    end
    local count = last - 3
    if count < 1 then
      return { 'OK', depth }
    end
    if depth + count > jobs_max or bytes + size > bytes_max then
      return { 'FULL', depth }
    end
    now = math.floor(now / 1000)
    if high - now > skew_max then
      return { 'SKEW', high - now }
    end
    if now - low > skew_max then
      return { 'SKEW', low - now }
    end
    in_chunks('RPUSH', keys[2], args, 4, last)
    redis.call('HINCRBY', keys[1], 'seq', count)
    redis.call('HINCRBY', keys[1], 'bytes', size)
    wake_owner(keys[3])
    return { 'OK', depth + count }
  end,
}
