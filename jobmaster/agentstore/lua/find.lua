-- find: look for some jobs in the lists of one bucket.
-- keys: meta assigned lists pending [claimed_prefix]
-- args: job_ids (16 bytes each, one after the other, at most IDS_MAX) scan_max claimed_prefix [places]
-- answers: OK entry ... (of those among the first scan_max, one for each id) | NOBUCKET
--          with places: OK assigned claimed entry ... (so many of the entries lie in each, in this order; the rest is pending)
-- effects: none
-- flags: no-writes
-- why: a job without a row can be looked at and cancelled; bounded, because the server runs no other command meanwhile.
--      assigned and claimed come first: they are short, pending may hold 200,000. What costs most is that every entry
--      passes into Lua, so many ids are looked for in one scan: 20,000 entries take 4.5 ms for one id, 4.9 ms for 500, and
--      3.7 ms without any comparison. The prefix of claimed lists is no key: a server cluster refuses a call with it while the
--      slot of the bucket is being moved, when lists that no key names may lie on the other node. The last two bytes of an id are looked at before a string is made of all 16, which
--      alone would take 2 ms. One id is what earlier builds sent, too.

local IDS_MAX = 500

redis.register_function{
  function_name = 'jm2_find',
  flags = { 'no-writes' },
  callback = function(keys, args)
    local ids, left = args[1], whole(args[2])
    if #keys < 4 or #keys > 5 or #args < 3 or #args > 4 or #ids % 16 ~= 0 or #ids > 16 * IDS_MAX or not left then
      return redis.error_reply('JMARGS find takes 4 keys, at most 500 ids of 16 bytes, a bound and the prefix of claimed lists')
    end
    if redis.call('EXISTS', keys[1]) == 0 then
      return { 'NOBUCKET' }
    end
    local wanted, tails, missing, answer = {}, {}, 0, { 'OK' }
    for from = 1, #ids, 16 do
      local id = string.sub(ids, from, from + 15)
      if not wanted[id] then
        local last, very_last = string.byte(id, 15, 16)
        wanted[id], tails[last * 256 + very_last] = true, true
        missing = missing + 1
      end
    end
    local byte = string.byte
    local function among(command, key)
      local from = 0
      while left > 0 and missing > 0 do
        local page = redis.call(command, key, from, from + math.min(CHUNK, left) - 1)
        for i = 1, #page do
          local last, very_last = byte(page[i], 18, 19)
          if very_last and tails[last * 256 + very_last] then
            local id = string.sub(page[i], 4, 19)
            if wanted[id] then
              wanted[id] = nil
              missing = missing - 1
              answer[#answer + 1] = page[i]
            end
          end
        end
        left = left - #page
        from = from + #page
        if #page < CHUNK then
          return
        end
      end
    end
    among('ZRANGE', keys[2])
    local assigned = #answer - 1
    for _, name in ipairs(redis.call('SMEMBERS', keys[3])) do
      among('LRANGE', args[3] .. name)
    end
    local claimed = #answer - 1 - assigned
    among('LRANGE', keys[4])
    if args[4] then
      table.insert(answer, 2, claimed)
      table.insert(answer, 2, assigned)
    end
    return answer
  end,
}
