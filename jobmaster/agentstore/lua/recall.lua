-- recall: take the copy of one waiting job out of a bucket, for a client that changes the job.
-- keys: meta assigned lists pending [claimed_prefix]
-- args: epoch identity due_us scan_max claimed_prefix
-- answers: OK recalled | OK claimed | OK absent | NOBUCKET | FENCED | CLOSED
-- effects: recalled: the copy is out of assigned (at due_us), or of the first scan_max of pending (meta.bytes -size), and
--          meta.recalled names it among the last ones; nothing on any other answer
-- flags: allow-oom (it frees memory)
-- why: the row of the job names this bucket, this epoch and the token of the copy, so a client that dies after this leaves a row
--      without a copy, which anti-entropy gives back. identity is what an entry has after its first byte: id and token. An
--      older copy of the same job stays. What is claimed has an agent, and stays: claimed lists are looked into first. pending
--      is not touched in a bucket that is being emptied, because its pages are read in place. meta.recalled has the last
--      ones only: a client whose answer was lost gets it again, and a put that comes late (assign, put) leaves them out. A
--      submit that was sent twice lies in pending twice, and both go. No fence, a client owns nothing; the change counter stays.
--      The key of a prefix: as in find.

-- Room for the last 64 or more.
local KEPT_BYTES = 1500
local RECALLED_FROM = { ACTIVE = true, COMPLETING = true, FROZEN = true }

redis.register_function{
  function_name = 'jm2_recall',
  flags = { 'allow-oom' },
  callback = function(keys, args)
    local identity, due, most = args[2], whole(args[3]), whole(args[4])
    if #keys < 4 or #keys > 5 or #args ~= 5 or not whole(args[1]) or #identity < 19 or not due or not most then
      return redis.error_reply('JMARGS recall takes 4 keys, an epoch, an identity, a due time, a bound and the prefix of claimed lists')
    end
    local found = redis.call('HMGET', keys[1], 'epoch', 'state', 'bytes', 'recalled')
    if not found[1] then
      return { 'NOBUCKET' }
    end
    if found[1] ~= args[1] then
      return { 'FENCED' }
    end
    if not RECALLED_FROM[found[2]] then
      return { 'CLOSED' }
    end
    local function among(command, key, first, count)
      while count > 0 do
        local page = redis.call(command, key, first, first + math.min(CHUNK, count) - 1)
        for i = 1, #page do
          if string.sub(page[i], 2, 1 + #identity) == identity then
            return page[i]
          end
        end
        if #page < CHUNK then
          return nil
        end
        first, count = first + #page, count - #page
      end
    end
    for _, name in ipairs(redis.call('SMEMBERS', keys[3])) do
      if among('LRANGE', args[5] .. name, 0, most) then
        return { 'OK', 'claimed' }
      end
    end
    local rank, count = redis.call('ZCOUNT', keys[2], '-inf', '(' .. args[3]), redis.call('ZCOUNT', keys[2], args[3], args[3])
    local item = among('ZRANGE', keys[2], rank, count)
    if item then
      redis.call('ZREM', keys[2], item)
    elseif INTAKE[found[2]] then
      item = among('LRANGE', keys[4], 0, most)
      if item then
        local count = redis.call('LREM', keys[4], 0, item)
        redis.call('HSET', keys[1], 'bytes', math.max(0, (tonumber(found[3]) or 0) - count * #item))
      end
    end
    local recalled = found[4] or ''
    if item then
      redis.call('HSET', keys[1], 'recalled', string.sub(recalled .. identity, -KEPT_BYTES))
    end
    local known = item or string.find(recalled, identity, 1, true)
    return { 'OK', known and 'recalled' or 'absent' }
  end,
}
