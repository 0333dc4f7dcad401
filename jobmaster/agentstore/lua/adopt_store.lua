-- adopt_store: claim this store for a cluster, or return the cluster that has it.
-- keys: store
-- args: cluster_uid generation protocol
-- answers: OK generation | OTHER cluster_uid | NEWER protocol
-- effects: the hash is written once, when it is missing; its protocol is only raised
-- flags: allow-oom (one small hash of each cluster, and every agent that starts needs it)
-- why: the generation lies in the data, so a store that comes back empty or swapped has another one, whatever its
--      server id is. Two clusters of one name on one store would mix their jobs: the second one is refused.

redis.register_function{
  function_name = 'jm2_adopt_store',
  flags = { 'allow-oom' },
  callback = function(keys, args)
    local protocol = whole(args[3])
    if #keys ~= 1 or #args ~= 3 or #args[1] ~= 16 or #args[2] ~= 16 or not protocol then
      return redis.error_reply('JMARGS adopt_store takes 1 key, cluster and generation of 16 bytes and a protocol number')
    end
    local found = redis.call('HMGET', keys[1], 'cluster_uid', 'generation', 'protocol')
    if not found[1] or not found[2] then
      redis.call('HSET', keys[1], 'cluster_uid', args[1], 'generation', args[2], 'protocol', args[3])
      return { 'OK', args[2] }
    end
    if found[1] ~= args[1] then
      return { 'OTHER', found[1] }
    end
    local present = tonumber(found[3]) or 0
    if present > protocol then
      return { 'NEWER', present }
    end
    if present < protocol then
      redis.call('HSET', keys[1], 'protocol', args[3])
    end
    return { 'OK', found[2] }
  end,
}
