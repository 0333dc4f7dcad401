-- remove_page: take exactly the items of one page out of a bucket that is being emptied.
-- keys: meta lists page (the list or sorted set the page was read from)
-- args: generation epoch owner lowest_ver kind list_name count digest member...
-- answers: OK ver removed | GEN | ROLLBACK ver | FENCED ver epoch | CLOSED ver state
-- effects: lists: the first count items are cut off if the sha1 of their concatenation is digest, otherwise nothing;
--          sorted set: the members go. An empty claimed list takes its name along.
-- flags: allow-oom (it only frees memory)
-- why: intake is closed, so a page stays where it was read. A count alone would not do: sent again after a lost reply it
--      would cut off the next page, which is not in the master yet. Hence the digest.

redis.register_function{
  function_name = 'jm2_remove_page',
  flags = { 'allow-oom' },
  callback = function(keys, args)
    local kind, name, count = args[5], args[6], whole(args[7])
    local known = kind == 'kept' or kind == 'claimed' or kind == 'pending' or kind == 'assigned'
    if #keys ~= 3 or #args < 8 or not known or not count or count < 0 then
      return redis.error_reply('JMARGS remove_page takes 3 keys, the fence, kind, list name, count, digest and members')
    end
    local no, ver, bytes = refusal(keys[1], args, EMPTYING)
    if no then
      return no
    end
    local removed = 0
    if kind == 'assigned' then
      removed = remove_members('ZREM', 'ZCARD', keys[3], args, 9, #args)
    else
      local length = kind == 'claimed' and redis.call('LLEN', keys[3])
      local items = count > 0 and redis.call('LRANGE', keys[3], 0, count - 1) or {}
      local body = table.concat(items)
      if #items == count and redis.sha1hex(body) == args[8] then
        removed = count
        if count > 0 then
          redis.call('LTRIM', keys[3], count, -1)
        end
        if kind == 'pending' then
          redis.call('HSET', keys[1], 'bytes', math.max(0, bytes - #body))
        end
      end
      if length == removed then
        redis.call('SREM', keys[2], name)
      end
    end
    return { 'OK', redis.call('HINCRBY', keys[1], 'ver', 1), removed }
  end,
}
