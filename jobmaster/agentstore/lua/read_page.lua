-- read_page: the next page of a bucket that is being emptied.
-- keys: meta spilled lists pending assigned
-- args: generation epoch owner lowest_ver limit claimed_prefix
-- answers: OK ver kind list_name {item...} (kind is empty when nothing is left)
--          | GEN | ROLLBACK ver | FENCED ver epoch | CLOSED ver state
-- effects: none
-- flags: no-writes
-- why: spilled first, because an outcome settles the entry that would otherwise be moved; then claimed, pending, assigned.
--      A list that is named but missing comes as an empty page, so that remove_page can forget its name.

redis.register_function{
  function_name = 'jm1_read_page',
  flags = { 'no-writes' },
  callback = function(keys, args)
    local limit = whole(args[5])
    if #keys ~= 5 or #args ~= 6 or not limit or limit < 1 then
      return redis.error_reply('JMARGS read_page takes 5 keys, the fence, a limit and the prefix of claimed lists')
    end
    local no, ver = refusal(keys[1], args, EMPTYING)
    if no then
      return no
    end
    local items = redis.call('LRANGE', keys[2], 0, limit - 1)
    if #items > 0 then
      return { 'OK', ver, 'spilled', '', items }
    end
    local names = redis.call('SMEMBERS', keys[3])
    if #names > 0 then
      table.sort(names)
      return { 'OK', ver, 'claimed', names[1], redis.call('LRANGE', args[6] .. names[1], 0, limit - 1) }
    end
    items = redis.call('LRANGE', keys[4], 0, limit - 1)
    if #items > 0 then
      return { 'OK', ver, 'pending', '', items }
    end
    items = redis.call('ZRANGE', keys[5], 0, limit - 1)
    return { 'OK', ver, #items > 0 and 'assigned' or '', '', items }
  end,
}
