-- find: look for one job in the lists of one bucket.
-- keys: meta assigned lists pending
-- args: job_id scan_max claimed_prefix
-- answers: OK entry | OK (not among the first scan_max) | NOBUCKET
-- effects: none
-- flags: no-writes
-- why: a job without a row can be looked at and cancelled; bounded, because the server serves nobody else meanwhile.
--      assigned and claimed come first: they are short, pending may hold 200,000.

redis.register_function{
  function_name = 'jm1_find',
  flags = { 'no-writes' },
  callback = function(keys, args)
    local id, left = args[1], whole(args[2])
    if #keys ~= 4 or #args ~= 3 or #id ~= 16 or not left then
      return redis.error_reply('JMARGS find takes 4 keys, an id of 16 bytes, a bound and the prefix of claimed lists')
    end
    if redis.call('EXISTS', keys[1]) == 0 then
      return { 'NOBUCKET' }
    end
    local function among(command, key)
      local from = 0
      while left > 0 do
        local page = redis.call(command, key, from, from + math.min(CHUNK, left) - 1)
        for i = 1, #page do
          if string.sub(page[i], 4, 19) == id then
            return page[i]
          end
        end
        left = left - #page
        from = from + #page
        if #page < CHUNK then
          return nil
        end
      end
      return nil
    end
    local item = among('ZRANGE', keys[2])
    if not item then
      for _, name in ipairs(redis.call('SMEMBERS', keys[3])) do
        item = item or among('LRANGE', args[3] .. name)
      end
    end
    return { 'OK', item or among('LRANGE', keys[4]) }
  end,
}
