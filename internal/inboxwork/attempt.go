package inboxwork

import (
	"context"
	"encoding/json"
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/inbox"
	"github.com/postrider/postrider/internal/inboxsql"
)

// Attempt is what the database knows of the tries to process one message.
type Attempt struct {
	Count     int           // tries begun or failed, this one included
	Dead      bool          // given up: skip it and acknowledge
	Wait      time.Duration // > 0: not due for so long; the try was not counted
	LastError string        // of the last try that failed, "" if none did

	// Orphan means that the last try was begun by another owner and has not
	// ended: that process died, or it lives and still works on the message. The
	// new try was not counted; see Try.TakeOver.
	Orphan bool
	// Alone means that the last try ran alone: see Try.Alone.
	Alone bool
	// Stashed means that the message waits in the stash, where its tries are counted: if it
	// comes from elsewhere, roll this one back and skip it.
	Stashed bool
}

// Try is an attempt about to begin.
type Try struct {
	Origin string // where the message stands, for people: "orders/3@1041"
	// Owner names the running process, anew after every start: 1 to 255 bytes.
	// An owner that begins again what it had begun itself is alive, so that try
	// is not counted twice.
	Owner string
	// Alone means that nothing else runs in the process that could take it down:
	// if it dies now, this message did it.
	Alone bool
	// TakeOver counts the try also when that of another owner has not ended.
	TakeOver bool
}

// BeginAttempt counts one more try of m. Commit it before the handler runs, in
// a transaction of its own: then a handler that takes the process down with it
// is counted too. Every try must end in one of FailAttempt, Bury, ForgetAttempts,
// ReturnAttempt and EndDuplicate; one that does not is an orphan.
func (in *Inbox) BeginAttempt(ctx context.Context, c inbox.Conn, m postrider.Message, try Try) (Attempt, error) {
	if err := in.who.Usable(m.ID); err != nil {
		return Attempt{}, err
	}
	var (
		a            Attempt
		state, owner string
		wait         int64
		stashed      int
	)
	takeOver := 0
	if try.TakeOver {
		takeOver = 1
	}
	args := append(in.names(&m, try.Origin), try.Owner, try.Alone, takeOver, m.Version)
	if err := in.sql.begin.scan(ctx, c, args, &a.Count, &state, &wait, &owner, &a.Alone, &a.LastError, &stashed); err != nil {
		return Attempt{}, in.wrap("count an attempt of", m.ID, err)
	}
	a.Dead, a.Stashed = state == "dead", stashed > 0
	a.Wait = max(0, time.Duration(wait)*time.Microsecond)
	a.Orphan = !a.Dead && a.Wait == 0 && owner != try.Owner
	return a, nil
}

// ReturnAttempt takes back the try of m that owner has begun: it did not fail,
// the database did, or the process was asked to end. It does nothing when that
// try has ended already.
func (in *Inbox) ReturnAttempt(ctx context.Context, c inbox.Conn, m postrider.Message, owner string) error {
	if _, err := in.sql.unbegin.Exec(ctx, c, in.who.Consumer, m.ID, owner); err != nil {
		return in.wrap("take back an attempt of", m.ID, err)
	}
	return nil
}

// FailAttempt records why a try of m failed and that the next one is due after
// delay. counted reports whether BeginAttempt has counted this try. The first 500
// bytes of cause are kept as they are: its author answers for what they reveal.
func (in *Inbox) FailAttempt(ctx context.Context, c inbox.Conn, m postrider.Message, origin string, counted bool, delay time.Duration, cause string) (Attempt, error) {
	if err := in.who.Usable(m.ID); err != nil {
		return Attempt{}, err
	}
	more := 1
	if counted {
		more = 0
	}
	var (
		a     Attempt
		state string
	)
	args := append(in.names(&m, origin), inboxsql.Clean(cause, maxCause), delay.Microseconds(), more, m.Version)
	if err := in.sql.fail.scan(ctx, c, args, &a.Count, &state); err != nil {
		return Attempt{}, in.wrap("record the failure of", m.ID, err)
	}
	a.Dead = state == "dead"
	return a, nil
}

// Bury makes a dead letter of m, body included, and claims it, in one
// transaction: a later delivery is skipped. It reports false when m has been
// processed already; then nothing is buried.
func (in *Inbox) Bury(ctx context.Context, c inbox.Conn, m postrider.Message, origin string, attempts int, cause string) (buried bool, err error) {
	return in.bury(ctx, c, m, origin, attempts, cause, "")
}

// BuryUndecodable is Bury for a record that could not be decoded to a message, because of cause:
// it is known as such when it is retried.
func (in *Inbox) BuryUndecodable(ctx context.Context, c inbox.Conn, m postrider.Message, origin string, attempts int, cause string) (buried bool, err error) {
	return in.bury(ctx, c, m, origin, attempts, cause, cause)
}

func (in *Inbox) bury(ctx context.Context, c inbox.Conn, m postrider.Message, origin string, attempts int, cause, undecodable string) (buried bool, err error) {
	fresh, err := in.Claim(ctx, c, m)
	if err != nil {
		return false, err
	}
	if !fresh {
		_, err := in.forgetUnstashed(ctx, c, &m)
		return false, err
	}
	return true, in.writeDead(ctx, c, &m, origin, attempts, cause, undecodable)
}

func (in *Inbox) writeDead(ctx context.Context, c inbox.Conn, m *postrider.Message, origin string, attempts int, cause, undecodable string) error {
	headers, err := json.Marshal(cleanHeaders(m.Headers))
	if err != nil {
		return in.wrap("encode the headers of", m.ID, err)
	}
	args := append(in.names(m, origin), attempts, inboxsql.Clean(cause, maxCause), append([]byte{}, m.Payload...),
		inboxsql.Clean(m.ContentType, postrider.MaxContentTypeLen), string(headers), m.Version, int64(m.SchemaVersion),
		created(m), rawKey(m), orNull(inboxsql.Clean(undecodable, maxCause)))
	if _, err := in.sql.bury.Exec(ctx, c, args...); err != nil {
		return in.wrap("bury", m.ID, err)
	}
	return in.became(ctx, c, m.ID, inbox.Died)
}

// ForgetAttempts removes the count of a message that was processed in this
// transaction. A dead letter stays.
func (in *Inbox) ForgetAttempts(ctx context.Context, c inbox.Conn, m postrider.Message) error {
	if _, err := in.sql.forget.Exec(ctx, c, in.who.Consumer, m.ID); err != nil {
		return in.wrap("forget the attempts of", m.ID, err)
	}
	return nil
}

// EndDuplicate ends the try that owner has begun of a message that another transaction has
// claimed or taken out of the stash, and forgets its count. If the message waits in the stash,
// its count stays, and only this try is taken back.
func (in *Inbox) EndDuplicate(ctx context.Context, c inbox.Conn, m postrider.Message, owner string) error {
	if forgotten, err := in.forgetUnstashed(ctx, c, &m); err != nil || forgotten {
		return err
	}
	return in.ReturnAttempt(ctx, c, m, owner)
}

func (in *Inbox) forgetUnstashed(ctx context.Context, c inbox.Conn, m *postrider.Message) (forgotten bool, err error) {
	res, err := in.sql.forgetUnstashed.Exec(ctx, c, in.who.Consumer, m.ID)
	if err != nil {
		return false, in.wrap("forget the attempts of", m.ID, err)
	}
	n, err := res.RowsAffected()
	return n > 0, err
}

// maxCause bounds the error text that is kept, in bytes.
const maxCause = 500

func (in *Inbox) names(m *postrider.Message, origin string) []any {
	return []any{
		in.who.Consumer, m.ID, in.topic(m), in.key(m),
		inboxsql.Clean(m.Type, postrider.MaxTypeLen), inboxsql.Clean(origin, 255),
	}
}

func cleanHeaders(h map[string]string) map[string]string {
	out := make(map[string]string, len(h))
	for name, value := range h {
		out[inboxsql.Clean(name, postrider.MaxHeaderBytes)] = inboxsql.Clean(value, postrider.MaxHeaderBytes)
	}
	return out
}

// created is the time of a message, nil if it has none.
func created(m *postrider.Message) any {
	if m.Time.IsZero() {
		return nil
	}
	return m.Time.UnixMicro()
}

// rawKey is the key of a message that the column of keys cannot hold, nil for all others.
func rawKey(m *postrider.Message) any {
	if name(m.Key, postrider.MaxKeyLen) == m.Key {
		return nil
	}
	return []byte(m.Key)
}

func orNull(text string) any {
	if text == "" {
		return nil
	}
	return text
}
