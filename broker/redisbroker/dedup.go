package redisbroker

import (
	"context"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/envelope"
)

// Redis 8.6 and newer remember a number of ids (idmp-maxsize) of each producer in a
// stream for a time (idmp-duration), and drop repeated messages.
//
// The default of 100 ids is less than the messages of one transaction. When only part of
// a repeated run is remembered, its later messages are dropped and its
// earlier ones stored again: a consumer without an inbox sees the older ones last. So
// IDMP is used only on streams that remember enough.
const leastMemory = 1000

// producers is the number of producers per stream and pipe: each has a memory of its own.
// All messages of a key have the same producer.
const producers = 16

// lookAgain is how long a stream's settings are cached.
const lookAgain = time.Minute

// memories caches which streams remember enough ids.
type memories struct {
	mu       sync.Mutex
	streams  map[string]memory
	shortest atomic.Int64 // shortest duration in use, nanoseconds; 0: none
}

type memory struct {
	enough bool
	until  time.Time
}

func (ms *memories) window() time.Duration { return time.Duration(ms.shortest.Load()) }

// of reports whether IDMP is used for the stream. It asks the server if the
// answer is not cached. A stream that does not exist yet is added to without IDMP.
func (ms *memories) of(ctx context.Context, l *link, stream string) bool {
	ms.mu.Lock()
	m, ok := ms.streams[stream]
	ms.mu.Unlock()
	if ok && time.Now().Before(m.until) {
		return m.enough
	}
	m = memory{until: time.Now().Add(lookAgain)}
	info := redis.NewXInfoStreamCmd(ctx, stream)
	if _, err := l.exec(ctx, info); err != nil {
		return false // the messages' own command returns the error
	}
	var window time.Duration
	if v := info.Val(); info.Err() == nil && v != nil && v.IDMPMaxSize >= leastMemory {
		m.enough = true
		window = time.Duration(v.IDMPDuration) * time.Second
	} else if info.Err() != nil {
		m.until = time.Now().Add(time.Second)
	}
	ms.mu.Lock()
	defer ms.mu.Unlock()
	if ms.streams == nil || len(ms.streams) > 10_000 {
		ms.streams = make(map[string]memory)
	}
	ms.streams[stream] = m
	if least := ms.window(); window > 0 && (least == 0 || window < least) {
		ms.shortest.Store(int64(window))
	}
	return m.enough
}

// producer returns the producer of a key's messages. Each pipe has producers of its own:
// a message of one pipe is no duplicate of another pipe's, and uses none of
// its memory.
func producer(pipe, key string) string {
	name := "postrider/" + strconv.Itoa(int(hash(key)%producers))
	if pipe != "" {
		name += "/" + pipe
	}
	return name
}

// idempotent returns the id by which the stream recognises a producer's duplicate.
// A message that a person replays must not count as one.
func idempotent(m *postrider.Message) string {
	if g := m.Headers[envelope.Generation]; g != "" {
		return m.ID + "/" + g
	}
	return m.ID
}
