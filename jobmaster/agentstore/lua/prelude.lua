-- prelude: what several functions share; it registers nothing.
-- keys: none
-- args: none
-- answers: none
-- effects: none
-- why: one library is one Lua chunk, so these locals exist once. Owner functions get the fence as ARGV 1..4 = generation,
--      epoch, owner, lowest change counter the caller has seen, and refuse in the order GEN, ROLLBACK, FENCED, CLOSED.
--      Only owner functions raise the counter `ver`: if producers raised it too, a store that came back older would have
--      caught up with the owner's floor before the owner called again, and the loss would go unseen.
--      While a slot of a server cluster is moved key by key, its node refuses a command for a key that is missing, in the
--      middle of a function, too, and what the function did before stays done. All keys of a call are there when it begins.
--      So after a command that may remove the last item of a key, no command of the same function names this key.

-- Lua's unpack refuses about 8,000 values (LUAI_MAXCSTACK); 1,000 leaves room and is as fast.
local CHUNK = 1000

local WORKING = { ACTIVE = true, COMPLETING = true }
local INTAKE = { ACTIVE = true }
local EMPTYING = { COMPLETING = true, DRAINING = true }
local OWNED = { ACTIVE = true, COMPLETING = true, FROZEN = true, DRAINING = true }

-- Microseconds since 1970 by this server; below 2^53, so exact as a Lua number and as an integer reply.
local function now_us()
  local time = redis.call('TIME')
  return tonumber(time[1]) * 1000000 + tonumber(time[2])
end

-- A whole number from an argument, or nil: NaN, fractions and text never reach a comparison.
local function whole(text)
  local value = tonumber(text)
  if value and value == math.floor(value) and value > -9007199254740992 and value < 9007199254740992 then
    return value
  end
  return nil
end

-- The refusal that the fence demands, or nil. Then also: the present `ver` and the fields bytes, hint, recalled of meta.
local function refusal(meta, args, states)
  local floor = whole(args[4])
  if not floor or not whole(args[2]) or #args[1] ~= 16 or #args[3] ~= 16 then
    return redis.error_reply('JMARGS the fence is generation (16 bytes), epoch, owner (16 bytes), lowest counter')
  end
  local found = redis.call('HMGET', meta, 'gen', 'ver', 'epoch', 'owner', 'state', 'bytes', 'hint', 'recalled')
  if found[1] ~= args[1] then
    return { 'GEN' }
  end
  local ver = tonumber(found[2]) or 0
  if ver < floor then
    return { 'ROLLBACK', ver }
  end
  if found[3] ~= args[2] or found[4] ~= args[3] then
    return { 'FENCED', ver, tonumber(found[3]) }
  end
  if states and not states[found[5]] then
    return { 'CLOSED', ver, found[5] }
  end
  return nil, ver, tonumber(found[6]) or 0, found[7], found[8]
end

-- command key <list[first..last]> in portions that unpack can carry, for commands that add.
local function in_chunks(command, key, list, first, last)
  for from = first, last, CHUNK do
    redis.call(command, key, unpack(list, from, math.min(from + CHUNK - 1, last)))
  end
end

-- The same for commands that remove (size_command gives the size of the key); how many were there. The key goes with its last
-- member, so nothing is sent after it. One portion, as is usual, needs no size.
local function remove_members(command, size_command, key, list, first, last)
  local size = last - first >= CHUNK and redis.call(size_command, key)
  local removed = 0
  for from = first, last, CHUNK do
    if removed == size then
      break
    end
    removed = removed + redis.call(command, key, unpack(list, from, math.min(from + CHUNK - 1, last)))
  end
  return removed
end

-- One token at most: a second one would only cost the owner an empty claim.
local function wake_owner(wake)
  if redis.call('LLEN', wake) == 0 then
    redis.call('RPUSH', wake, '1')
  end
end

-- True for an entry whose id can be read at bytes 4..19: array of at most 15 fields, then 16 bytes of binary.
local function is_entry(item)
  local head, kind, size = string.byte(item, 1, 3)
  return kind == 0xc4 and size == 16 and head >= 0x91 and head <= 0x9f and #item >= 19
end

-- nil, or the error for the first bad pair of due, entry in args[first..].
local function bad_pair(args, first)
  if (#args - first) % 2 ~= 1 then
    return redis.error_reply('JMARGS due times and entries come in pairs')
  end
  for i = first, #args, 2 do
    if not whole(args[i]) or not is_entry(args[i + 1]) then
      return redis.error_reply('JMARGS pair ' .. ((i - first) / 2 + 1) .. ' is not a due time and an entry')
    end
  end
  return nil
end

-- Milliseconds since 1970 in the id of an entry.
local function made_ms(item)
  return struct.unpack('>I6', item, 4)
end

-- Items of a list or sorted set from position first on, in order: at most count, and of these as many as bytes_max holds,
-- one at least; then the item that did not fit, or nil. A table for scores gets those of a sorted set (of that item, too).
-- The size of an item is known only after reading it, so pages are small at first: little more is read than is taken.
local FIRST_PAGE, LAST_PAGE = 64, 256
local function items_from(command, key, first, count, bytes_max, scores)
  local items, found, size, page_size = {}, 0, 0, FIRST_PAGE
  local stride, stop = scores and 2 or 1, first + count
  while first < stop do
    local last = math.min(first + page_size, stop) - 1
    local page = scores and redis.call(command, key, first, last, 'WITHSCORES') or redis.call(command, key, first, last)
    for i = 1, #page, stride do
      size = size + #page[i]
      if scores then
        scores[found + 1] = tonumber(page[i + 1])
      end
      if size > bytes_max and found > 0 then
        return items, page[i]
      end
      found = found + 1
      items[found] = page[i]
    end
    if #page < (last - first + 1) * stride then
      break
    end
    first, page_size = last + 1, math.min(page_size * 2, LAST_PAGE)
  end
  return items
end

-- Id and token of an entry, as they stand in it: no such text is the beginning of another one.
local TOKEN_BYTES = { [0xcc] = 2, [0xcd] = 3, [0xce] = 5 }
local function identity_of(item)
  return string.sub(item, 2, 19 + (TOKEN_BYTES[string.byte(item, 20)] or 1))
end

-- The pairs of due, entry in args[first..] without the copies that clients have recalled: a put that was given up may be done
-- long after its repetition, and the copy would start a job that waits for another time by now.
local function without_recalled(args, first, recalled)
  local kept = {}
  for i = first, #args, 2 do
    if not string.find(recalled, identity_of(args[i + 1]), 1, true) then
      kept[#kept + 1] = args[i]
      kept[#kept + 1] = args[i + 1]
    end
  end
  return kept
end

-- Into `assigned`; the owner's timer is wrong only when something is due earlier than anything it knew.
local function add_assigned(assigned, wake, args, first, recalled)
  if recalled then
    args, first = without_recalled(args, first, recalled), 1
  end
  local last = #args
  if last < first then
    return
  end
  local before = redis.call('ZRANGE', assigned, 0, 0, 'WITHSCORES')[2]
  local earliest = tonumber(args[first])
  for i = first, last, 2 do
    earliest = math.min(earliest, tonumber(args[i]))
  end
  in_chunks('ZADD', assigned, args, first, last)
  if not before or earliest < tonumber(before) then
    wake_owner(wake)
  end
end

-- How many jobs of a bucket wait to be run, and their bytes: all that is pending, and what of assigned is due. The bytes of
-- the latter are reckoned from the ten that are due first.
local SAMPLE = 10
local function backlog(pending, assigned, pending_bytes, now)
  local due, bytes = redis.call('ZCOUNT', assigned, '-inf', now), pending_bytes
  if due > 0 then
    local some, size = redis.call('ZRANGE', assigned, 0, math.min(due, SAMPLE) - 1), 0
    for i = 1, #some do
      size = size + #some[i]
    end
    bytes = bytes + math.floor(size * due / #some)
  end
  return redis.call('LLEN', pending) + due, bytes
end
