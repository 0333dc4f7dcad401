-- read_claimed: one claimed list, as claim returned it.
-- keys: meta claimed:<name>
-- args: generation epoch owner lowest_ver
-- answers: OK ver now_us {entry...} | GEN | ROLLBACK ver | FENCED ver epoch
-- effects: none
-- flags: no-writes
-- why: never creates a list, unlike a claim with a name that has been settled meanwhile.

redis.register_function{
  function_name = 'jm2_read_claimed',
  flags = { 'no-writes' },
  callback = function(keys, args)
    if #keys ~= 2 or #args ~= 4 then
      return redis.error_reply('JMARGS read_claimed takes 2 keys and the fence')
    end
    local no, ver = refusal(keys[1], args)
    return no or { 'OK', ver, now_us(), redis.call('LRANGE', keys[2], 0, -1) }
  end,
}
