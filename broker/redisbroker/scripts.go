package redisbroker

// The scripts of a source. Each runs atomically, and also while
// the server is out of memory: consumers free the memory by acknowledging.

// Lease: KEYS lease; ARGV owner, milliseconds. 1: renewed; 2: taken, and another
// source may have had it meanwhile; 0: another source has it.
const leaseScript = `#!lua flags=allow-oom
local owner = redis.call('get', KEYS[1])
if owner == ARGV[1] then
  redis.call('pexpire', KEYS[1], ARGV[2])
  return 1
end
if owner then return 0 end
redis.call('set', KEYS[1], ARGV[1], 'px', ARGV[2])
return 2`

// Release: KEYS lease; ARGV owner.
const releaseScript = `#!lua flags=allow-oom
if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) end
return 0`

// Present: KEYS members; ARGV member, milliseconds. It marks the member as alive
// and returns the number of live members, by the server's clock.
const presentScript = `#!lua flags=allow-oom
local t = redis.call('time')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
redis.call('zadd', KEYS[1], now + ARGV[2], ARGV[1])
redis.call('zremrangebyscore', KEYS[1], '-inf', '(' .. now)
redis.call('pexpire', KEYS[1], ARGV[2] * 10)
return redis.call('zcard', KEYS[1])`

// Group: KEYS stream; ARGV group. 1: created, from the beginning; 0: it existed.
const groupScript = `#!lua flags=allow-oom
local made = redis.pcall('xgroup', 'create', KEYS[1], ARGV[1], '0', 'mkstream')
if not made.err then return 1 end
if string.find(made.err, 'BUSYGROUP', 1, true) then return 0 end
return made`

// Fetch: KEYS pairs of stream and lease; ARGV owner, group, consumer,
// count. It returns per stream: 0 if another source has the lease, the entries, or
// without any the stream's last id. A read that arrives after the lease was lost
// would take entries from the new owner, which would deliver later ones of their keys.
const fetchScript = `#!lua flags=allow-oom
local all = {}
for i = 1, #KEYS, 2 do
  local at = #all + 1
  if redis.call('get', KEYS[i + 1]) ~= ARGV[1] then
    all[at] = 0
  else
    local got = redis.pcall('xreadgroup', 'group', ARGV[2], ARGV[3], 'count', ARGV[4], 'streams', KEYS[i], '>')
    if not got then
      local info = redis.call('xinfo', 'stream', KEYS[i])
      for j = 1, #info, 2 do
        if info[j] == 'last-generated-id' then all[at] = info[j + 1] end
      end
    elseif got.err then
      all[at] = got
    else
      all[at] = got[1][2]
    end
  end
end
return all`

// Done: KEYS stream; ARGV group, ids. It acknowledges the entries, and deletes them if
// the stream has no other group: for servers without XACKDEL.
const doneScript = `#!lua flags=allow-oom
local ids = {unpack(ARGV, 2)}
redis.call('xack', KEYS[1], ARGV[1], unpack(ids))
if redis.call('exists', KEYS[1]) == 1 and #redis.call('xinfo', 'groups', KEYS[1]) == 1 then
  redis.call('xdel', KEYS[1], unpack(ids))
end
return 1`
