-- read_page: the next page of a bucket that is being emptied.
-- keys: meta kept lists pending assigned
-- args: generation epoch owner lowest_ver limit claimed_prefix [bytes_max]
-- answers: OK ver kind list_name {item...} (of together bytes_max bytes at most, or one; kind is empty when nothing is left)
--          | GEN | ROLLBACK ver | FENCED ver epoch | CLOSED ver state
-- effects: none
-- flags: no-writes
-- why: kept first, because an outcome settles the entry that would otherwise be moved; then claimed, pending, assigned.
--      A list that is named but missing comes as an empty page, so that remove_page can forget its name.

redis.register_function{
  function_name = 'jm2_read_page',
  flags = { 'no-writes' },
  callback = function(keys, args)
    local limit = whole(args[5])
    local bytes_max = math.huge
    if #args == 7 then
      bytes_max = whole(args[7])
    end
    if #keys ~= 5 or #args < 6 or #args > 7 or not limit or limit < 1 or not bytes_max then
      return redis.error_reply('JMARGS read_page takes 5 keys, the fence, a limit, the prefix of claimed lists and a bound in bytes')
    end
    local no, ver = refusal(keys[1], args, EMPTYING)
    if no then
      return no
    end
    local items = items_from('LRANGE', keys[2], 0, limit, bytes_max)
    if #items > 0 then
      return { 'OK', ver, 'kept', '', items }
    end
    local names = redis.call('SMEMBERS', keys[3])
    if #names > 0 then
      table.sort(names)
      items = items_from('LRANGE', args[6] .. names[1], 0, limit, bytes_max)
      return { 'OK', ver, 'claimed', names[1], items }
    end
    items = items_from('LRANGE', keys[4], 0, limit, bytes_max)
    if #items > 0 then
      return { 'OK', ver, 'pending', '', items }
    end
    items = items_from('ZRANGE', keys[5], 0, limit, bytes_max)
    return { 'OK', ver, #items > 0 and 'assigned' or '', '', items }
  end,
}
