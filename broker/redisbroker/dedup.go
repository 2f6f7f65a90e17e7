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

// Redis 8.6 and newer remember the ids of each producer in a stream, a number of
// them (idmp-maxsize) for a time (idmp-duration), and drop what is repeated.
//
// The default of 100 ids is less than what one transaction holds. When a repeated
// run of messages is remembered in part, its later messages are dropped and its
// earlier ones stored again: who has no inbox then sees the older one last. So
// IDMP is used only on streams that remember enough.
const leastMemory = 1000

// producers of a stream and pipe: the memory is per producer. Messages of a key have one.
const producers = 16

// lookAgain is how long what a stream remembers is taken for granted.
const lookAgain = time.Minute

// memories knows which streams remember enough.
type memories struct {
	mu       sync.Mutex
	streams  map[string]memory
	shortest atomic.Int64 // nanoseconds, of those that are used; 0: none
}

type memory struct {
	enough bool
	until  time.Time
}

func (ms *memories) window() time.Duration { return time.Duration(ms.shortest.Load()) }

// of reports whether IDMP is used for the stream. It asks the server when it
// does not know; a stream that is not there yet gets none.
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
		return false // the messages' own command says what is wrong
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

// producer is the producer of a key's messages. Each pipe has producers of its own:
// a message of one pipe does not repeat a message of another, and uses up none of
// its memory.
func producer(pipe, key string) string {
	name := "postrider/" + strconv.Itoa(int(hash(key)%producers))
	if pipe != "" {
		name += "/" + pipe
	}
	return name
}

// idempotent returns the id by which the stream knows a repetition of a producer.
// A message that a person sends again must not count as one.
func idempotent(m *postrider.Message) string {
	if g := m.Headers[envelope.Generation]; g != "" {
		return m.ID + "/" + g
	}
	return m.ID
}
