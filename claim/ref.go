package claim

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/envelope"
)

// Ref is the place of a payload in the database, with its size and digest.
type Ref struct {
	Schema string // of the outbox
	Lane   int
	Seq    int64
	ID     string // of the message
	Bytes  int
	SHA256 [sha256.Size]byte
}

// String is the value of the header: a URI such as
// postrider:postrider/17/4711/ID?bytes=N&sha256=HEX. It has no server: the
// consumer is configured with the outbox's address.
func (r Ref) String() string {
	return fmt.Sprintf("%s%s/%d/%d/%s?bytes=%d&sha256=%x", envelope.RefScheme, r.Schema, r.Lane, r.Seq, r.ID, r.Bytes, r.SHA256)
}

var errRef = errors.New("must be a Postrider reference such as postrider:SCHEMA/LANE/SEQ/ID?bytes=N&sha256=HEX")

// Parse reads the value of the header.
func Parse(s string) (Ref, error) {
	rest, ok := strings.CutPrefix(s, envelope.RefScheme)
	path, query, more := strings.Cut(rest, "?")
	part := strings.Split(path, "/")
	values, err := url.ParseQuery(query)
	if !ok || !more || len(part) != 4 || err != nil {
		return Ref{}, errRef
	}
	r := Ref{Schema: part[0], ID: part[3]}
	sum, errSum := hex.DecodeString(values.Get("sha256"))
	var errs [3]error
	r.Lane, errs[0] = strconv.Atoi(part[1])
	r.Seq, errs[1] = strconv.ParseInt(part[2], 10, 64)
	r.Bytes, errs[2] = strconv.Atoi(values.Get("bytes"))
	if errors.Join(errSum, errs[0], errs[1], errs[2]) != nil || len(sum) != sha256.Size || r.Schema == "" || r.ID == "" || r.Bytes < 0 {
		return Ref{}, errRef
	}
	copy(r.SHA256[:], sum)
	return r, nil
}

// Policy decides which payloads stay in the database.
type Policy struct {
	Schema string // of the outbox
	Above  int    // largest payload in bytes that is sent with its message
	// MaxAge is the age of a message, by its Time, up to which its payload stays in the
	// database: half of the retention of payloads, so that consumers have the
	// other half. 0: any age, for an outbox without retention.
	MaxAge time.Duration
	// Valid reports whether a payload matches its schema, for messages whose payload would
	// stay; nil: any does. Other messages are sent whole, and the sink's router, which cannot
	// validate what stays in the database, rejects them. It must be fast, and safe for
	// concurrent use.
	Valid func(m *postrider.Message) bool
}

// Without returns m without its payload and with the header ref
// instead. It does not change m.
func Without(m postrider.Message, ref string) postrider.Message {
	headers := make(map[string]string, len(m.Headers)+1)
	maps.Copy(headers, m.Headers)
	headers[envelope.DataRef] = ref
	m.Headers, m.Payload = headers, nil
	return m
}

// Ref returns the value of the header for the message at lane and
// seq, and "" for a message that is sent whole. It reads the clock, and calls Valid.
func (p *Policy) Ref(lane int, seq int64, m *postrider.Message) string {
	if len(m.Payload) <= p.Above || p.MaxAge > 0 && time.Since(m.Time) > p.MaxAge || p.Valid != nil && !p.Valid(m) {
		return ""
	}
	return Ref{Schema: p.Schema, Lane: lane, Seq: seq, ID: m.ID, Bytes: len(m.Payload), SHA256: sha256.Sum256(m.Payload)}.String()
}
