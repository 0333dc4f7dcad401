-- withdraw: take copies of cancelled jobs out of `assigned`, and the requests that their owner has noted.
-- keys: meta assigned cancelled
-- args: generation epoch owner lowest_ver noted_ids (16 bytes each, one after the other) (due_us job_id)...
-- answers: OK ver {removed id...} | GEN | ROLLBACK ver | FENCED ver epoch | CLOSED ver state
-- effects: the copies are out of assigned, the noted ids out of cancelled
-- flags: allow-oom (it only frees memory)
-- why: the rows of these jobs are final already, so a copy would only wait for its time to be refused. A copy lies at the due
--      time of its row, and only copies of that time are looked at; pairs of one due time are to stand side by side, then
--      they share one scan. A claim does not take requests out by itself, because its reply may be lost.

redis.register_function{
  function_name = 'jm2_withdraw',
  flags = { 'allow-oom' },
  callback = function(keys, args)
    local noted = args[5]
    if #keys ~= 3 or not noted or #noted % 16 ~= 0 or #args % 2 ~= 1 then
      return redis.error_reply('JMARGS withdraw takes 3 keys, the fence, ids of 16 bytes, and pairs of due time and id')
    end
    for i = 6, #args, 2 do
      if not whole(args[i]) or #args[i + 1] ~= 16 then
        return redis.error_reply('JMARGS pair ' .. ((i - 4) / 2) .. ' is not a due time and an id of 16 bytes')
      end
    end
    local no, ver = refusal(keys[1], args, OWNED)
    if no then
      return no
    end
    local over = {}
    for from = 1, #noted, 16 do
      over[#over + 1] = string.sub(noted, from, from + 15)
    end
    remove_members('SREM', 'SCARD', keys[3], over, 1, #over)
    local gone, removed = {}, {}
    local function look(due, wanted, missing)
      local rank = redis.call('ZCOUNT', keys[2], '-inf', '(' .. due)
      local left = redis.call('ZCOUNT', keys[2], due, due)
      while left > 0 and missing > 0 do
        local page = redis.call('ZRANGE', keys[2], rank, rank + math.min(CHUNK, left) - 1)
        for i = 1, #page do
          local id = string.sub(page[i], 4, 19)
          if wanted[id] then
            wanted[id] = nil
            missing = missing - 1
            gone[#gone + 1] = page[i]
            removed[#removed + 1] = id
          end
        end
        left = left - #page
        rank = rank + #page
      end
    end
    local i = 6
    while i <= #args do
      local due, wanted, missing = args[i], {}, 0
      while i <= #args and args[i] == due do
        if not wanted[args[i + 1]] then
          wanted[args[i + 1]] = true
          missing = missing + 1
        end
        i = i + 2
      end
      look(due, wanted, missing)
    end
    if #gone > 0 then
      remove_members('ZREM', 'ZCARD', keys[2], gone, 1, #gone)
      ver = redis.call('HINCRBY', keys[1], 'ver', 1)
    end
    return { 'OK', ver, removed }
  end,
}
