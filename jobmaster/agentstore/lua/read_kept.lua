-- read_kept: the oldest outcomes that a working bucket keeps for the master.
-- keys: meta kept
-- args: generation epoch owner lowest_ver limit [bytes_max]
-- answers: OK ver left {outcome...} (of together bytes_max bytes at most, or one) | GEN | ROLLBACK ver | FENCED ver epoch | CLOSED ver state
-- effects: none
-- flags: no-writes
-- why: read_page is for a bucket whose intake is closed; this one goes on working. New outcomes join at the other end, so
--      what was read stays where it is until remove_kept takes it out. left counts all that lie there, these included.
--      Also while the bucket is FROZEN: what has ended is recorded.

redis.register_function{
  function_name = 'jm2_read_kept',
  flags = { 'no-writes' },
  callback = function(keys, args)
    local limit = whole(args[5])
    local bytes_max = math.huge
    if #args == 6 then
      bytes_max = whole(args[6])
    end
    if #keys ~= 2 or #args < 5 or #args > 6 or not limit or limit < 1 or not bytes_max then
      return redis.error_reply('JMARGS read_kept takes 2 keys, the fence, a limit and a bound in bytes')
    end
    local no, ver = refusal(keys[1], args, OWNED)
    if no then
      return no
    end
    local items = items_from('LRANGE', keys[2], 0, limit, bytes_max)
    return { 'OK', ver, redis.call('LLEN', keys[2]), items }
  end,
}
